"""The index tensors of one step: which rows of the cache every token reads and writes, in every kind of layer.

Shapes: S tokens of the step, T tiles of Q queries, K window rows, E entries, P pairs of a tile and a page, n windows
that close, w rows that are kept, R old rows. Row indices are those of stores.RowStore: slot * stride + row. A
*workspace* is old rows, gathered from the tails, followed by the step's S new rows.
"""

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Windows:
    """What one kind of compressor does in a step: it closes windows into entries and keeps state rows."""

    old_row: Tensor  # [R] state rows that precede the step's new rows in the workspace
    window: Tensor  # [n, k] workspace rows of each window; C4: half rows
    valid: Tensor  # [n, k] False for rows before position 0
    phase: Tensor  # [S] position modulo the ratio: the row of `ape` to add
    position: Tensor  # [n] of the entry, for RoPE
    target: Tensor  # [n] row that the entry is stored at
    write_from: Tensor | None  # [w] workspace rows to keep; None = all, in order
    write_row: Tensor  # [w] state row that each is stored at


@dataclass(frozen=True)
class DenseEntries:
    """Entries that all queries of a tile read."""

    row: Tensor  # [T, E]
    mask: Tensor  # [T, Q, E]
    empty: Tensor | None  # [T] tiles without any entry, whose rows must not be read; None = no such tile


@dataclass(frozen=True)
class ScannedEntries:
    """Entries from which the indexer selects. A page is the entries of one block."""

    pair_tile: Tensor  # [P]
    pair_page: Tensor  # [P]
    pair_row: Tensor  # [P] first key row of the page
    pages: int
    visible: Tensor  # [T * Q] entries that each query sees
    table: Tensor  # [T, pages] block slot of each page
    entry_stride: int


@dataclass(frozen=True)
class Group:
    """Queries of one tile width: 1 for decoding sequences, PREFILL_TILE for prefill chunks."""

    query: Tensor | None  # [T * Q] token of each query, where padding repeats the last one; None = the step's tokens
    tiles: int
    back: Tensor | None  # [tokens] query of each token of the group, in token order; None = the queries are the tokens
    window_row: Tensor  # [T, K] rows of the raw workspace
    window_mask: Tensor  # [T, Q, K]
    c4: DenseEntries | ScannedEntries | None
    c128: DenseEntries | None


@dataclass(frozen=True)
class StepInputs:
    """All index tensors of one step on one device."""

    ids: Tensor  # [S]
    positions: Tensor  # [S]
    raw_old_row: Tensor  # [R]
    raw_write_from: Tensor  # [w]
    raw_write_row: Tensor  # [w]
    c4: Windows
    index: Windows
    c128: Windows
    groups: tuple[Group, ...]
    last: Tensor  # [slices] token of each slice's last position, in the caller's order

    def to(self, device: torch.device) -> "StepInputs":
        """Return these inputs with every tensor on `device`."""
        return self if device.type == "cpu" else _to(self, device)


def _to(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        return tuple(_to(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _to(getattr(value, f.name), device) for f in fields(value)})
    return value
