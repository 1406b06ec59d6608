"""One step's ragged batch as index tensors: which rows every token reads and writes, in every kind of layer.

Pure host arithmetic (numpy) over a geometry; the forward only gathers and scatters by these. Nothing loops over tokens
or sequences. A step's *workspace* of a ring is its old rows, gathered from tails, followed by the step's new rows, so
that a chunk may be longer than the ring. Row indices are those of stores.RowStore: slot * stride + row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from v4_core.blocks import BLOCK_TOKENS
from v4_core.config import C4, C128
from v4_core.geometry import C4_ENTRIES, C4_WINDOW, C128_WINDOW, CacheGeometry, Region
from v4_engine.errors import IntegrityError

Ints = NDArray[np.int64]
PREFILL_TILE = 32  # queries of one sequence that share a gather of window rows
_GROUP_TOKENS = 65_536  # context below which decoding sequences are not told apart


@dataclass(frozen=True)
class Slice:
    """Tokens of one sequence that run in one step."""

    ids: Sequence[int]
    start: int  # position of ids[0]
    tail: int
    slots: Sequence[int]  # block slots from block 0, as many as start + len(ids) needs
    write_from: int = 0  # entries that close before this position exist already and are only read
    valid_from: int = 0  # first position whose raw rows exist (a replay starts without any)
    captures: tuple[tuple[int, int], ...] = ()  # (boundary within the slice, tail that gets the state there)


@dataclass(frozen=True)
class Windows:
    """What one kind of compressor does: close windows into entries, keep state rows."""

    old_row: Tensor  # [R] state rows to put in front of the step's new rows
    window: Tensor  # [n, k] rows of the workspace per closing token; C4: half rows
    valid: Tensor  # [n, k]
    phase: Tensor  # [S] position modulo the ratio, the row of ape to add
    position: Tensor  # [n] of the entry, for RoPE
    target: Tensor  # [n] row that the entry is stored at
    write_from: Tensor | None  # [w] rows of the workspace that stay; None = all, in order
    write_row: Tensor  # [w] state row that each goes to


@dataclass(frozen=True)
class DenseEntries:
    """Entries that all queries of a tile read."""

    row: Tensor  # [T, E]
    mask: Tensor  # [T, Q, E]
    empty: Tensor | None  # [T] tiles without any entry, whose rows are not to be read; None if there is none


@dataclass(frozen=True)
class ScannedEntries:
    """Entries among which the indexer selects."""

    pair_tile: Tensor  # [P]
    pair_page: Tensor  # [P]
    pair_row: Tensor  # [P] first key row of the page
    pages: int
    visible: Tensor  # [T * Q]
    table: Tensor  # [T, pages] block slot of each page
    entry_stride: int


@dataclass(frozen=True)
class Group:
    """Queries of one tile width: decoding sequences (1) or prefill chunks (PREFILL_TILE)."""

    query: Tensor | None  # [T * Q] token of each query, a padded one repeats the last; None = the step's tokens
    tiles: int
    back: Tensor | None  # [tokens] query of each token of the group, in token order; None = they are the same
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
    raw_write_from: Tensor
    raw_write_row: Tensor
    c4: Windows
    index: Windows
    c128: Windows
    groups: tuple[Group, ...]
    last: Tensor  # [slices] token of each slice's last position, in the caller's order


def ragged(counts: Ints) -> tuple[Ints, Ints]:
    """(owner, position within owner) of sum(counts) items."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


class StepInputsBuilder:
    """Builds the inputs of steps over one cache geometry."""

    def __init__(self, geometry: CacheGeometry, device: torch.device) -> None:
        g, self._device = geometry, device
        self._g = g
        tails = {(r.kind, g.config.ratios[r.layer] if r.layer < g.config.num_layers else 0): r for r in g.tail_regions}
        raw = next(r for r in g.tail_regions if r.kind == "raw")
        self._raw = _Ring(g, raw)
        self._c4 = _Ring(g, tails[("state", C4)]) if ("state", C4) in tails else None
        self._index = _Ring(g, tails[("index_state", C4)]) if ("index_state", C4) in tails else None
        self._c128 = _Ring(g, tails[("state", C128)]) if ("state", C128) in tails else None
        self._entry_stride = g.slab_bytes // g.entry_row.parts[0]
        self._key_stride = g.slab_bytes // g.index_row.parts[0]

    def build(self, slices: Sequence[Slice]) -> StepInputs:
        """Index tensors of a step of these slices. Slices of one token come first in token order."""
        order = sorted(range(len(slices)), key=lambda i: _group_of(slices[i]))
        batch = _Batch([slices[i] for i in order])
        raw_low = np.maximum(batch.valid_from, batch.start - self._g.config.window + 1)
        raw = _Workspace(batch, np.minimum(raw_low, batch.start))
        keep = self._g.config.window
        write_from, write_row = raw.writes(self._raw, keep + self._g.slack, keep)
        groups = np.array([_group_of(slices[i]) for i in order])
        edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(slices)]
        spans = [(a, b, 1 if batch.length[a] == 1 else PREFILL_TILE) for a, b in pairwise(edges)]
        inputs = StepInputs(
            ids=_tensor(batch.ids),
            positions=_tensor(batch.position),
            raw_old_row=_tensor(raw.old_rows(self._raw)),
            raw_write_from=_tensor(write_from),
            raw_write_row=_tensor(write_row),
            c4=self._windows(batch, C4, self._c4, self._entry_stride),
            index=self._windows(batch, C4, self._index, self._key_stride),
            c128=self._windows(batch, C128, self._c128, self._entry_stride),
            groups=tuple(self._group(batch, raw, *span) for span in spans),
            last=_tensor((batch.first + batch.length - 1)[np.argsort(order)]),
        )
        return inputs if self._device.type == "cpu" else _to(inputs, self._device)

    def _windows(self, b: "_Batch", ratio: int, ring: "_Ring | None", stride: int) -> Windows:
        if ring is None:
            none = torch.empty(0, dtype=torch.int64)
            return Windows(none, none, none, none, none, none, None, none)
        c4, slack = ratio == C4, self._g.slack
        size, overlap = (C4_WINDOW, C4) if c4 else (C128_WINDOW, 0)
        closing = ((b.position + 1) % ratio == 0) & (b.position >= b.write_from[b.owner])
        token = np.flatnonzero(closing)
        needs = np.zeros(len(b.length), dtype=bool)
        needs[b.owner[token]] = True
        needs[b.capture_owner] |= c4
        oldest = np.maximum(b.start // ratio * ratio - overlap, np.minimum(b.valid_from, b.start))
        space = _Workspace(b, np.where(needs, oldest, b.start))
        owner, position = b.owner[token], b.position[token]
        rows = position[:, None] - np.arange(size - 1, -1, -1)
        window = space.row(owner[:, None], np.maximum(rows, space.low[owner][:, None]))
        if c4:  # the previous window's first halves, then this window's second halves
            window = 2 * window + (np.arange(size) >= C4)
        entry, per_block = position // ratio, BLOCK_TOKENS // ratio
        keep = b.end % ratio + overlap + slack
        write_from, write_row = space.writes(ring, keep, overlap)
        return Windows(
            old_row=_tensor(space.old_rows(ring)),
            window=_tensor(window),
            valid=torch.from_numpy(rows >= 0),
            phase=_tensor(b.position % ratio),
            position=_tensor(entry * ratio),
            target=_tensor(b.slot(owner, position // BLOCK_TOKENS) * stride + entry % per_block),
            write_from=None if space.is_identity(write_from) else _tensor(write_from),
            write_row=_tensor(write_row),
        )

    def _group(self, b: "_Batch", raw: "_Workspace", first: int, last: int, width: int) -> Group:
        length = b.length[first:last]
        owner, tile = ragged(-(-length // width))
        owner += first
        begin = tile * width
        query = np.minimum(begin[:, None] + np.arange(width), b.length[owner][:, None] - 1)  # within the slice
        position = b.start[owner][:, None] + query
        window = self._g.config.window
        key = b.start[owner][:, None] + begin[:, None] + np.arange(1 - window, width)
        low, high = raw.low[owner][:, None], b.end[owner][:, None]
        seen = (key[:, None] <= position[..., None]) & (key[:, None] > position[..., None] - window)
        row = raw.row(owner[:, None], np.clip(key, low, high - 1))
        token_owner, i = ragged(length)
        tile_of = np.cumsum(-(-length // width)) - -(-length // width)
        decode_only = width == 1 and len(length) == len(b.length)
        return Group(
            query=None if decode_only else _tensor(b.first[owner][:, None] + query).flatten(),
            tiles=len(owner),
            back=None if decode_only else _tensor((tile_of[token_owner] + i // width) * width + i % width),
            window_row=_tensor(row),
            window_mask=torch.from_numpy(seen & (key >= low)[:, None]),
            c4=self._c4_entries(b, owner, position) if self._c4 else None,
            c128=self._dense(b, owner, (position + 1) // C128, C128) if self._c128 else None,
        )

    def _dense(self, b: "_Batch", owner: Ints, visible: Ints, ratio: int) -> DenseEntries | None:
        most = visible.max(1)
        entries = int(most.max())
        if not entries:
            return None
        per_block = BLOCK_TOKENS // ratio
        entry = np.minimum(np.arange(entries), np.maximum(most - 1, 0)[:, None])
        row = b.slot(owner[:, None], entry // per_block) * self._entry_stride + entry % per_block
        empty = most == 0
        return DenseEntries(
            row=_tensor(row),
            mask=torch.from_numpy(np.arange(entries) < visible[..., None]),
            empty=torch.from_numpy(empty) if empty.any() else None,
        )

    def _c4_entries(self, b: "_Batch", owner: Ints, position: Ints) -> DenseEntries | ScannedEntries | None:
        visible = (position + 1) // C4
        if visible.max() <= self._g.config.index_topk:
            return self._dense(b, owner, visible, C4)
        count = -(-visible.max(1) // C4_ENTRIES)
        tile, page = ragged(count)
        slot = b.slot(owner[tile], page)
        pages = int(count.max())
        table = b.slot(owner[:, None], np.minimum(np.arange(pages), np.maximum(count - 1, 0)[:, None]))
        return ScannedEntries(
            pair_tile=_tensor(tile),
            pair_page=_tensor(page),
            pair_row=_tensor(slot * self._key_stride),
            pages=pages,
            visible=_tensor(visible).flatten(),
            table=_tensor(table),
            entry_stride=self._entry_stride,
        )


def _group_of(s: Slice) -> int:
    """Slices that share a group, in which each reads as many C128 entries as the one with the most: decoding ones whose
    contexts are within a factor of two of each other where they are long, and all prompts."""
    if len(s.ids) > 1:
        return 64
    return (s.start // _GROUP_TOKENS).bit_length()


class _Batch:
    """The slices' numbers as arrays over slices and over tokens."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        def array(values: list[int]) -> Ints:
            return np.array(values, dtype=np.int64)

        self.length = array([len(s.ids) for s in slices])
        self.start = array([s.start for s in slices])
        self.end = self.start + self.length
        self.tail = array([s.tail for s in slices])
        self.write_from = array([s.write_from for s in slices])
        self.valid_from = array([s.valid_from for s in slices])
        self.first = np.cumsum(self.length) - self.length  # token of each slice's first id
        self.owner, within = ragged(self.length)
        self.position = self.start[self.owner] + within
        self.ids = np.concatenate([np.asarray(s.ids, dtype=np.int64) for s in slices])
        self.capture_owner = array([i for i, s in enumerate(slices) for _ in s.captures])
        self.capture_end = array([end for s in slices for end, _ in s.captures])
        self.capture_tail = array([tail for s in slices for _, tail in s.captures])
        self._slots = np.concatenate([np.asarray(s.slots, dtype=np.int64) for s in slices])
        counts = array([len(s.slots) for s in slices])
        self._slot_first = np.cumsum(counts) - counts
        if (counts * BLOCK_TOKENS < self.end).any():
            raise IntegrityError("a slice has fewer block slots than its tokens need")

    def slot(self, owner: Ints, block: Ints) -> Ints:
        """Arena slot of a slice's block."""
        slots: Ints = self._slots[self._slot_first[owner] + block]
        return slots


class _Ring:
    """Where a ring's rows lie in tails."""

    def __init__(self, geometry: CacheGeometry, region: Region) -> None:
        part = region.row.parts[0]
        self._rows, self._page_rows = region.rows, region.page_rows
        self._tail_stride, self._page_stride = geometry.tail_bytes // part, region.page_bytes // part

    def row(self, tail: Ints, position: Ints) -> Ints:
        page, within = np.divmod(position % self._rows, self._page_rows)
        rows: Ints = tail * self._tail_stride + page * self._page_stride + within
        return rows


class _Workspace:
    """Old rows (from `low` to start, per slice), then all new rows in token order."""

    def __init__(self, batch: _Batch, low: Ints) -> None:
        self._b, self.low = batch, low
        self._counts = batch.start - low
        self._old_first = np.cumsum(self._counts) - self._counts
        self._new_first = int(self._counts.sum()) + batch.first

    def old_rows(self, ring: _Ring) -> Ints:
        """Ring rows of the old part."""
        owner, within = ragged(self._counts)
        return ring.row(self._b.tail[owner], self.low[owner] + within)

    def row(self, owner: Ints, position: Ints) -> Ints:
        """Workspace row of a position in low .. end-1."""
        old = self._old_first[owner] + position - self.low[owner]
        return np.where(position < self._b.start[owner], old, self._new_first[owner] + position - self._b.start[owner])

    def is_identity(self, rows: Ints) -> bool:
        """Whether these are all rows of a workspace without old ones, in order."""
        return not self._counts.any() and len(rows) == len(self._b.ids) and not self._b.capture_owner.size

    def writes(self, ring: _Ring, keep: "Ints | int", capture: int) -> tuple[Ints, Ints]:
        """(workspace row, ring row) of the rows to keep: the last `keep` new ones of each slice for its own tail, and
        the last `capture` before each captured boundary for the capturing tail."""
        b = self._b
        owner, within = ragged(np.minimum(b.length, keep))
        position = b.end[owner] - np.minimum(b.length, keep)[owner] + within
        low = np.maximum(b.capture_end - capture, self.low[b.capture_owner])
        captured, offset = ragged(b.capture_end - low)
        capture_position = low[captured] + offset
        owners = np.concatenate((owner, b.capture_owner[captured]))
        positions = np.concatenate((position, capture_position))
        tails = np.concatenate((b.tail[owner], b.capture_tail[captured]))
        return self.row(owners, positions), ring.row(tails, positions)


def _tensor(values: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))


def _to(value: Any, device: torch.device) -> Any:
    """StepInputs with all their tensors on `device`."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, tuple):
        return tuple(_to(item, device) for item in value)
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{f.name: _to(getattr(value, f.name), device) for f in fields(value)})
    return value
