"""From a step's slices to its index tensors: the windows that close, and the rows that each group of queries reads.

Pure host arithmetic (numpy) over a geometry, without a loop over tokens or sequences. The forward pass only gathers and
scatters by the tensors made here.
"""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from v4_core.blocks import BLOCK_TOKENS
from v4_core.config import C4, C128
from v4_core.geometry import C4_ENTRIES, C4_WINDOW, C128_WINDOW, CacheGeometry
from v4_engine.batch import Batch, Ints, Ring, Slice, Workspace, ragged
from v4_engine.inputs import DenseEntries, Group, ScannedEntries, StepInputs, Windows

PREFILL_TILE = 32  # queries of one sequence that share a gather of window rows
_GROUP_TOKENS = 65_536  # decoding sequences with shorter contexts form one group


class InputBuilder:
    """Builds the inputs of steps over one cache geometry."""

    def __init__(self, geometry: CacheGeometry, device: torch.device) -> None:
        g, self._device = geometry, device
        self._g = g
        tails = {(r.kind, g.config.ratios[r.layer] if r.layer < g.config.num_layers else 0): r for r in g.tail_regions}
        raw = next(r for r in g.tail_regions if r.kind == "raw")
        self._raw = Ring(g, raw)
        self._c4 = Ring(g, tails[("state", C4)]) if ("state", C4) in tails else None
        self._index = Ring(g, tails[("index_state", C4)]) if ("index_state", C4) in tails else None
        self._c128 = Ring(g, tails[("state", C128)]) if ("state", C128) in tails else None
        self._entry_stride = g.slab_bytes // g.entry_row.parts[0]
        self._key_stride = g.slab_bytes // g.index_row.parts[0]

    def build(self, slices: Sequence[Slice]) -> StepInputs:
        """Return the index tensors of a step of these slices. In token order, slices of one token come first."""
        order = sorted(range(len(slices)), key=lambda i: _group_of(slices[i]))
        batch = Batch([slices[i] for i in order])
        raw_low = np.maximum(batch.valid_from, batch.start - self._g.config.window + 1)
        raw = Workspace(batch, np.minimum(raw_low, batch.start))
        keep = self._g.config.window
        write_from, write_row = raw.writes(self._raw, keep + self._g.slack, keep)
        groups = np.array([_group_of(slices[i]) for i in order])
        edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist(), len(slices)]
        spans = [(a, b, 1 if batch.length[a] == 1 else PREFILL_TILE) for a, b in pairwise(edges)]
        return StepInputs(
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
        ).to(self._device)

    def _windows(self, b: Batch, ratio: int, ring: Ring | None, stride: int) -> Windows:
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
        space = Workspace(b, np.where(needs, oldest, b.start))
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

    def _group(self, b: Batch, raw: Workspace, first: int, last: int, width: int) -> Group:
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

    def _dense(self, b: Batch, owner: Ints, visible: Ints, ratio: int) -> DenseEntries | None:
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

    def _c4_entries(self, b: Batch, owner: Ints, position: Ints) -> DenseEntries | ScannedEntries | None:
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
    """Return the number of the slice's group.

    Every slice of a group reads as many C128 entries as the longest one. So all prompts form one group, and decoding
    sequences with long contexts share a group only if their lengths are within a factor of two.
    """
    if len(s.ids) > 1:
        return 64
    return (s.start // _GROUP_TOKENS).bit_length()


def _tensor(values: Ints) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))
