"""The operators that a device may have faster versions of, behind one interface.

`reference.py` is plain torch for any device; `for_device` gives the fastest set that is equal to it.
"""

from typing import Protocol

import torch
from torch import Tensor

from v4_engine.kernels import reference


class Kernels(Protocol):
    """What the forward calls; see reference.py for shapes and meaning."""

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor: ...
    def head_norm(self, q: Tensor, eps: float, acc: torch.dtype) -> Tensor: ...
    def rotate(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor: ...
    def sinkhorn(self, logits: Tensor, iterations: int, eps: float) -> Tensor: ...
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


def for_device(device: torch.device) -> Kernels:
    """The operators to use on a device."""
    return reference
