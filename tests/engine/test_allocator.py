"""The memory of sequences: all or nothing, shared where blocks are named, given back whole."""

import pytest

from v4_engine.allocator import Allocator
from v4_engine.errors import IntegrityError
from v4_engine.pool import SlotPool
from v4_engine.sequence import Phase, Request, Sequence

CHECKPOINT = 2


def make(slots: int = 14, tails: int = 4) -> tuple[Allocator, SlotPool]:
    """An allocator whose checkpoints take 2 slots, and its pool."""
    pool = SlotPool(slots)
    return Allocator(pool, tails, CHECKPOINT), pool


def sequence(tokens: int, phase: Phase = "whole", n: int = 1) -> Sequence:
    """A sequence with its forks; all have the same tokens."""
    request = Request(("r", 0), phase, [i % 5 for i in range(tokens)], n=n)
    first = Sequence.of(request, 0)
    first.forks = [Sequence(request, i, list(first.ids)) for i in range(1, n)]
    return first


def held(member: Sequence) -> int:
    """Slots that a sequence owns or shares."""
    return len(member.slots) + len(member.rolling)


@pytest.mark.parametrize(
    ("tokens", "phase", "n", "expected"),
    [
        (512, "prefill", 1, [2]),
        (513, "prefill", 1, [3]),
        (512, "whole", 1, [2 + 1 + CHECKPOINT]),
        (513, "whole", 2, [3 + 1 + CHECKPOINT, 1 + 1 + CHECKPOINT]),  # the fork copies the open block
        (512, "decode", 2, [2 + 1 + CHECKPOINT, 1 + CHECKPOINT]),
    ],
)
def test_a_sequence_and_its_forks_get_what_they_need(tokens: int, phase: Phase, n: int, expected: list[int]) -> None:
    allocator, pool = make()
    whole = sequence(tokens, phase, n)
    assert allocator.allocate(whole, 0, "prompt")
    assert [held(member) for member in (whole, *whole.forks)] == expected
    assert sum(expected) == allocator.need(tokens, 0, phase != "prefill", n - 1) == pool.total - pool.free
    assert allocator.tails_free == 4 - n
    allocator.check_integrity([whole, *whole.forks])
    allocator.release(whole)
    assert (pool.free, allocator.tails_free) == (pool.total, 4)


@pytest.mark.parametrize(("slots", "tails"), [(9, 4), (14, 1)])
def test_without_enough_slots_or_tails_nothing_is_taken(slots: int, tails: int) -> None:
    allocator, pool = make(slots, tails)
    whole = sequence(513, n=2)  # 10 slots, 2 tails
    assert not allocator.allocate(whole, 0, "prompt")
    assert (pool.free, allocator.tails_free) == (slots, tails)
    assert (whole.slots, whole.tail) == ([], None)


def test_a_named_block_is_shared_and_a_second_copy_of_it_is_freed() -> None:
    allocator, pool = make()
    first, second = sequence(300, "prefill"), sequence(300, "prefill")
    for one in (first, second):
        assert allocator.allocate(one, 0, "prompt")
    assert not allocator.name_next(first), "the block is new"
    before = pool.free
    assert allocator.name_next(second)
    assert (second.slots[0], pool.free) == (first.slots[0], before + 1)
    third = sequence(300, "prefill")
    assert allocator.allocate(third, 1, "prompt")
    assert third.slots[0] == first.slots[0]
    allocator.check_integrity([first, second, third])


def test_growing_ends_where_nothing_is_free_or_evictable() -> None:
    allocator, pool = make(slots=5)
    whole = sequence(300)
    assert allocator.allocate(whole, 0, "prompt")
    assert pool.free == 0
    assert not allocator.grow(whole)
    allocator.release(whole)
    assert allocator.allocate(whole, 0, "prompt")
    assert held(whole) == 5


def test_a_released_rolling_checkpoint_stays_with_its_block() -> None:
    allocator, pool = make()
    whole = sequence(300)
    allocator.allocate(whole, 0, "prompt")
    allocator.name_next(whole)
    whole.rolling_at = 256
    slots = whole.rolling
    allocator.release(whole)
    assert pool.tree.nodes[whole.names[0]].checkpoint == slots
    assert pool.available == pool.total


def test_a_boundary_has_one_checkpoint() -> None:
    allocator, _ = make()
    whole = sequence(300)
    allocator.allocate(whole, 0, "prompt")
    allocator.name_next(whole)
    slots = allocator.checkpoint(whole, 256)
    assert slots is not None
    assert len(slots) == CHECKPOINT
    assert allocator.checkpoint(whole, 256) is None


def test_a_lost_tail_is_found() -> None:
    allocator, _ = make()
    whole = sequence(300)
    allocator.allocate(whole, 0, "prompt")
    allocator.check_integrity([whole])
    whole.tail = None
    with pytest.raises(IntegrityError, match="tails are lost"):
        allocator.check_integrity([whole])
