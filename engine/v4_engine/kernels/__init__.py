"""The operators of which a device may have faster versions, behind one interface.

`reference.py` is plain torch for any device. `for_device` returns the fastest set with the same results.
"""

from typing import Protocol

import torch
from torch import Tensor

from v4_engine.kernels import reference


class Kernels(Protocol):
    """The operators that the forward pass calls. reference.py documents their shapes and meaning."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def head_norm(self, q: Tensor, eps: float, acc: torch.dtype) -> Tensor: ...
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor: ...
    def hyper_pre(
        self,
        streams: Tensor,
        mixes: Tensor,
        scale: Tensor,
        base: Tensor,
        iterations: int,
        eps: float,
        norm_eps: float,
    ) -> tuple[Tensor, Tensor, Tensor]: ...
    def hyper_post(self, out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor: ...
    def route(
        self, logits: Tensor, bias: Tensor | None, fixed: Tensor | None, k: int, factor: float
    ) -> tuple[Tensor, Tensor]: ...
    def swiglu(self, gate_up: Tensor, limit: float) -> Tensor: ...
    def compress(self, rows: Tensor, valid: Tensor, norm: Tensor, eps: float) -> Tensor: ...
    def index_scores(
        self,
        query: Tensor,
        weight: Tensor,
        keys: Tensor,
        pair_tile: Tensor,
        pair_page: Tensor,
        pair_row: Tensor,
        pages: int,
    ) -> Tensor: ...
    def select(self, scores: Tensor, visible: Tensor, k: int) -> tuple[Tensor, Tensor]: ...
    def attend(self, query: Tensor, rows: Tensor, mask: Tensor, sinks: Tensor) -> Tensor: ...
    def attend_selected(
        self,
        query: Tensor,
        rows: Tensor,
        mask: Tensor,
        entries: Tensor,
        entry_row: Tensor,
        entry_mask: Tensor,
        sinks: Tensor,
    ) -> Tensor: ...
    def grouped_linear(self, x: Tensor, weight: Tensor, ends: Tensor) -> Tensor: ...


def for_device(device: torch.device, compute: torch.dtype) -> Kernels:
    """Return the operators to use on a device for a compute type."""
    if device.type == "cpu" and compute in (torch.float32, torch.float64):
        from v4_engine.kernels import cpu  # noqa: PLC0415 - numba is needed on a CPU only

        return cpu
    return reference
