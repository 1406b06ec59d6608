"""Defines which bytes one pull transfers and in which order. Pure; both sides compute the same layout.

    stream = [block have_blocks] .. [last complete block][open block, if there is one][tail at n]

The parts are packed without padding. The geometry says which rows exist; the caller knows which slot holds a block.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

from v4_core.blocks import BLOCK_TOKENS
from v4_core.geometry import CacheGeometry, Span
from v4_kvtransfer.errors import PullMismatch

TAIL = -1  # the block index of pieces of the tail


class Piece(NamedTuple):
    """Bytes that are contiguous both in a slot and in the stream."""

    block: int  # index in the sequence, or TAIL
    offset: int  # byte offset in the slot's row
    length: int  # bytes


class StreamLayout:
    """The stream of one pull: the cache of `tokens` positions without the first `have_blocks` blocks.

    Offsets are byte offsets in the stream. Raises PullMismatch if `have_blocks` exceeds the complete blocks of the
    sequence.
    """

    def __init__(self, geometry: CacheGeometry, tokens: int, have_blocks: int) -> None:
        complete, rest = divmod(tokens, BLOCK_TOKENS)
        if tokens < 1 or have_blocks > complete:
            raise PullMismatch(
                f"{tokens} tokens have {complete} complete blocks, of which {have_blocks} are not pulled"
            )
        self.have_blocks = have_blocks
        self.blocks = geometry.slots(tokens)
        self._complete = complete
        self._block = _Segment(geometry.block_spans)
        self._open = _Segment(geometry.open_block_spans(rest)) if rest else None
        self._tail = _Segment(geometry.tail_spans(tokens))
        lengths = [self._block.total] * (complete - have_blocks)
        lengths += [self._open.total] if self._open else []
        self._bounds = list(accumulate([*lengths, self._tail.total], initial=0))
        self.total = self._bounds[-1]

    def ready(self, complete_blocks: int) -> int:
        """Bytes that may be sent once `complete_blocks` blocks of the sequence are complete, but the tail is not."""
        return self._bounds[max(0, min(complete_blocks, self._complete) - self.have_blocks)]

    def arrived(self, received: int) -> int:
        """The number of leading blocks that the receiver has completely after `received` bytes."""
        ends = self._complete - self.have_blocks
        return self.have_blocks + bisect_right(self._bounds, received, 1, ends + 1) - 1

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """Yields the pieces of the stream bytes start .. end-1 in order."""
        index = bisect_right(self._bounds, start) - 1
        while start < end:
            base = self._bounds[index]
            stop = min(end, self._bounds[index + 1])
            block, segment = self._segment(index)
            for offset, length in segment.clip(start - base, stop - base):
                yield Piece(block, offset, length)
            start, index = stop, index + 1

    def _segment(self, index: int) -> tuple[int, "_Segment"]:
        block = self.have_blocks + index
        if block < self._complete:
            return block, self._block
        if block == self._complete and self._open is not None:
            return block, self._open
        return TAIL, self._tail


class _Segment:
    """The spans of one block or tail as a packed segment, of which any range can be taken."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._spans = spans
        self._starts = list(accumulate((length for _, length in spans), initial=0))
        self.total = self._starts[-1]

    def clip(self, start: int, end: int) -> Iterator[Span]:
        """Yields the spans of the packed bytes start .. end-1."""
        index = bisect_right(self._starts, start) - 1
        while start < end:
            skip = start - self._starts[index]
            offset, length = self._spans[index]
            taken = min(length - skip, end - start)
            yield offset + skip, taken
            start, index = start + taken, index + 1
