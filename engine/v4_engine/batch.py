"""A step's ragged batch as arrays: its slices and tokens, the rings in the tails, and the workspace of a ring.

Pure numpy over a geometry, without a loop over tokens. A ring holds the last rows of a sequence, in its tail. The
*workspace* of a ring is the old rows that a step needs, gathered from the tails, followed by the step's new rows in
token order, so a chunk may be longer than the ring. Row indices are those of stores.RowStore: slot * stride + row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from v4_core.blocks import BLOCK_TOKENS
from v4_core.geometry import CacheGeometry, Region
from v4_engine.errors import IntegrityError

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Slice:
    """The tokens of one sequence that one step computes."""

    ids: Sequence[int]
    start: int  # position of ids[0]
    tail: int
    slots: Sequence[int]  # from block 0; enough for start + len(ids) tokens
    write_from: int = 0  # entries that close before this position exist and are only read
    valid_from: int = 0  # first position whose raw rows exist or are computed; a replay starts without any
    captures: tuple[tuple[int, int], ...] = ()  # (boundary inside the slice, tail that gets the state at it)


def ragged(counts: Ints) -> tuple[Ints, Ints]:
    """Return (owner, index within the owner) of each of sum(counts) items."""
    owner = np.repeat(np.arange(len(counts)), counts)
    return owner, np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)


class Batch:
    """The fields of a step's slices as arrays over slices and over tokens."""

    def __init__(self, slices: Sequence[Slice]) -> None:
        def array(values: list[int]) -> Ints:
            return np.array(values, dtype=np.int64)

        self.length = array([len(s.ids) for s in slices])
        self.start = array([s.start for s in slices])
        self.end = self.start + self.length
        self.tail = array([s.tail for s in slices])
        self.write_from = array([s.write_from for s in slices])
        self.valid_from = array([s.valid_from for s in slices])
        self.first = np.cumsum(self.length) - self.length  # index, among the step's tokens, of each slice's first token
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
        """Return the arena slots of blocks, given the slice and number of each."""
        slots: Ints = self._slots[self._slot_first[owner] + block]
        return slots


class Ring:
    """The row indices of one kind of ring in the tails."""

    def __init__(self, geometry: CacheGeometry, region: Region) -> None:
        part = region.row.parts[0]
        self._rows, self._page_rows = region.rows, region.page_rows
        self._tail_stride, self._page_stride = geometry.tail_bytes // part, region.page_bytes // part

    def row(self, tail: Ints, position: Ints) -> Ints:
        """Return the rows of positions, given the tail of each."""
        page, within = np.divmod(position % self._rows, self._page_rows)
        rows: Ints = tail * self._tail_stride + page * self._page_stride + within
        return rows


class Workspace:
    """The old rows of each slice, from position `low` to its start, followed by all new rows in token order."""

    def __init__(self, batch: Batch, low: Ints) -> None:
        self._b, self.low = batch, low
        self._counts = batch.start - low
        self._old_first = np.cumsum(self._counts) - self._counts
        self._new_first = int(self._counts.sum()) + batch.first

    def old_rows(self, ring: Ring) -> Ints:
        """Return the ring rows of the old part."""
        owner, within = ragged(self._counts)
        return ring.row(self._b.tail[owner], self.low[owner] + within)

    def row(self, owner: Ints, position: Ints) -> Ints:
        """Return the workspace rows of positions in low .. end-1, given the slice of each."""
        old = self._old_first[owner] + position - self.low[owner]
        return np.where(position < self._b.start[owner], old, self._new_first[owner] + position - self._b.start[owner])

    def is_identity(self, rows: Ints) -> bool:
        """Whether the workspace has no old rows and `rows` are all its rows, in order."""
        return not self._counts.any() and len(rows) == len(self._b.ids) and not self._b.capture_owner.size

    def writes(self, ring: Ring, keep: "Ints | int", capture: int) -> tuple[Ints, Ints]:
        """Return (workspace row, ring row) of the rows to keep.

        The last `keep` new rows of each slice go to its own tail, and the last `capture` rows before each captured
        boundary go to the tail that captures it.
        """
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
