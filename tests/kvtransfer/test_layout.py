"""The stream's layout: both sides agree on every byte, whatever the slots, cuts and slack."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.kvtransfer.support import EMPTY, FLASH, TINY, filled, positions
from v4_core.geometry import CacheGeometry, total
from v4_kvtransfer.errors import PullMismatch
from v4_kvtransfer.layout import TAIL, StreamLayout
from v4_kvtransfer.memory import HostMemory

FORMATS = st.sampled_from([("fp64", "fp64"), ("fp32", "fp32"), ("bf16", "bf16"), ("bf16", "fp8"), ("fp32", "bf16")])


def _send(memory: HostMemory, slots: list[int], layout: StreamLayout, start: int, end: int) -> bytes:
    rows = {TAIL: memory.tails[0]} | {i: memory.slabs[slot] for i, slot in enumerate(slots)}
    return b"".join(rows[b][o : o + n].tobytes() for b, o, n in layout.pieces(start, end))


def _receive(memory: HostMemory, slots: list[int], layout: StreamLayout, start: int, data: bytes) -> None:
    rows = {TAIL: memory.tails[0]} | {i: memory.slabs[slot] for i, slot in enumerate(slots)}
    position = 0
    for block, offset, length in layout.pieces(start, start + len(data)):
        rows[block][offset : offset + length] = np.frombuffer(data[position : position + length], np.uint8)
        position += length
    assert position == len(data)


def _move(ours: CacheGeometry, theirs: CacheGeometry, tokens: int, have: int, cuts: list[float]) -> None:
    """Send from a memory of slack `ours` to one of `theirs`, cut at these fractions, and compare every row."""
    blocks = ours.slots(tokens)
    source, target = filled(ours, blocks + 2, seed=tokens), filled(theirs, blocks + 1)
    slots, their_slots = list(range(blocks))[::-1], list(range(1, blocks + 1))
    layout, their_layout = StreamLayout(ours, tokens, have), StreamLayout(theirs, tokens, have)
    assert layout.total == their_layout.total
    bounds = sorted({0, layout.total, *(int(cut * layout.total) for cut in cuts)})
    for start, end in pairwise(bounds):
        _receive(target, their_slots, their_layout, start, _send(source, slots, layout, start, end))
    for block in range(blocks):
        rest = min(256, tokens - 256 * block)
        got, expected = target.slabs[their_slots[block]].copy(), source.slabs[slots[block]]
        for offset, length in ours.open_block_spans(rest) if block >= have else ():
            assert np.array_equal(got[offset : offset + length], expected[offset : offset + length])
            got[offset : offset + length] = EMPTY
        assert (got == EMPTY).all(), "bytes were written that do not exist at this length"
    assert (target.slabs[0] == EMPTY).all()
    assert positions(theirs, tokens, target.tails[0]) == positions(ours, tokens, source.tails[0])


@settings(max_examples=60, deadline=None)
@given(
    FORMATS,
    st.integers(1, 1100),
    st.data(),
    st.sampled_from([(0, 0), (0, 5), (5, 0), (3, 7)]),
    st.integers(0, 1),
    st.lists(st.floats(0, 1), max_size=6),
)
def test_any_cut_and_any_slack_interoperate(
    formats: tuple[str, str],
    tokens: int,
    data: st.DataObject,
    slacks: tuple[int, int],
    drafts: int,
    cuts: list[float],
) -> None:
    ours, theirs = (CacheGeometry(TINY, *formats, slack=slack, draft_layers=drafts) for slack in slacks)
    _move(ours, theirs, tokens, data.draw(st.integers(0, tokens // 256)), cuts)


@pytest.mark.parametrize("tokens", [3, 127, 129, 256, 391])
def test_flash_fp8_with_other_slack(tokens: int) -> None:
    ours, theirs = (CacheGeometry(FLASH, "fp8", "fp4", slack=slack, draft_layers=1) for slack in (0, 5))
    _move(ours, theirs, tokens, 0, [0.3, 0.31, 0.9])


@given(st.integers(1, 5000), st.data())
def test_a_block_counts_with_its_last_byte(tokens: int, data: st.DataObject) -> None:
    geometry = CacheGeometry(TINY, "fp32", "fp32")
    have = data.draw(st.integers(0, tokens // 256))
    layout = StreamLayout(geometry, tokens, have)
    received = data.draw(st.integers(0, layout.total))
    size = total(geometry.block_spans)
    assert layout.arrived(received) == min(tokens // 256, have + received // size)
    for blocks in range(tokens // 256 + 2):
        assert layout.ready(blocks) == size * max(0, min(blocks, tokens // 256) - have)
    if have == 0:
        assert layout.total == geometry.sequence_bytes(tokens)


@pytest.mark.parametrize(("tokens", "have"), [(0, 0), (255, 1), (512, 3)])
def test_more_blocks_than_there_are_is_refused(tokens: int, have: int) -> None:
    with pytest.raises(PullMismatch):
        StreamLayout(CacheGeometry(TINY, "fp32", "fp32"), tokens, have)


def test_memory_of_another_geometry_is_refused() -> None:
    geometry = CacheGeometry(TINY, "fp32", "fp32")
    with pytest.raises(ValueError, match="slabs must be"):
        HostMemory(
            geometry, np.zeros((2, geometry.slab_bytes + 1), np.uint8), np.zeros((1, geometry.tail_bytes), np.uint8)
        )
