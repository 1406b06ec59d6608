"""The prefix tree and its pool: the bookkeeping always adds up, and eviction follows the documented order."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from v4_engine.pool import SlotPool

CHECKPOINT = 2


def chain(*parts: int) -> list[bytes]:
    """Return the names of a chain of blocks with these contents."""
    return [bytes(parts[: i + 1]) for i in range(len(parts))]


def grow(pool: SlotPool, names: list[bytes]) -> None:
    """Complete these blocks, like a sequence that then ends."""
    depth = pool.tree.match(names)
    pool.tree.acquire(names[:depth])
    for i in range(depth, len(names)):
        slots = pool.take(1, "prompt")
        assert slots is not None
        pool.tree.insert(names[i - 1] if i else None, names[i], slots[0])
    pool.tree.release(names)


def save(pool: SlotPool, name: bytes) -> None:
    """Give a block a checkpoint."""
    slots = pool.take(CHECKPOINT, "checkpoint")
    assert slots is not None
    pool.tree.set_checkpoint(name, slots)


def test_order_of_eviction() -> None:
    pool = SlotPool(20)
    long, other = chain(1, 2, 3), chain(8, 9)
    grow(pool, long)
    save(pool, long[0])
    grow(pool, other)
    save(pool, other[1])
    order: list[str] = []
    while pool.tree.nodes:
        before = {name: node.checkpoint for name, node in pool.tree.nodes.items()}
        evicted = pool.tree.evict()
        assert evicted is not None
        pool.release(evicted.slots)
        for name, checkpoint in before.items():
            if name not in pool.tree.nodes:
                order.append(f"block {name.hex()}")
            elif checkpoint and pool.tree.nodes[name].checkpoint is None:
                order.append(f"checkpoint {name.hex()}")
        assert order[-1] == f"{evicted.what} {evicted.name.hex()}"
    assert pool.tree.evict() is None
    assert order == [
        "block 010203",  # after the last checkpoint, the deepest first
        "block 0102",
        "checkpoint 01",  # the least recently used checkpoint of a leaf
        "block 01",
        "checkpoint 0809",
        "block 0809",
        "block 08",
    ]
    pool.check_integrity([])


def test_checkpoints_of_leaves_go_before_older_ones_inside_a_chain() -> None:
    pool = SlotPool(20)
    long, other = chain(1, 2), chain(8)
    grow(pool, long)
    save(pool, long[0])
    save(pool, long[1])
    grow(pool, other)
    save(pool, other[0])
    order = [pool.tree.evict() for _ in range(4)]
    assert [(evicted.what, evicted.name) for evicted in order if evicted is not None] == [
        ("checkpoint", long[1]),
        ("block", long[1]),
        ("checkpoint", long[0]),  # its block has become a leaf
        ("block", long[0]),
    ]


def test_a_referenced_block_stays_and_its_checkpoint_may_go() -> None:
    pool = SlotPool(5)
    names = chain(1, 2)
    grow(pool, names)
    save(pool, names[1])
    pool.tree.acquire(names)
    assert pool.available == 3
    assert pool.take(4, "prompt") is None
    taken = pool.take(3, "prompt")
    assert taken is not None
    assert pool.tree.nodes[names[1]].checkpoint is None
    pool.release(taken)
    pool.tree.release(names)
    pool.check_integrity([])


def test_evictions_are_counted_by_kind_and_reason() -> None:
    pool = SlotPool(5)
    names = chain(1, 2)
    grow(pool, names)
    save(pool, names[1])
    assert pool.take(1, "transfer")  # takes the free slot
    assert not any(pool.counts.evictions.values())
    assert pool.take(1, "decode")
    assert pool.take(2, "transfer")
    assert pool.take(2, "prompt") is None, "only one slot can be had"
    assert {key: count for key, count in pool.counts.evictions.items() if count} == {
        ("checkpoint", "decode"): 1,
        ("block", "transfer"): 1,
    }
    assert pool.recently_evicted(names[1])
    assert not pool.recently_evicted(names[0])


def test_as_many_evicted_names_are_remembered_as_there_are_slots() -> None:
    pool = SlotPool(2)
    for i in [*range(5), 3]:
        grow(pool, chain(i))
        grow(pool, chain(100 + i))
    assert [i for i in range(5) if pool.recently_evicted(chain(i)[0])] == [4]
    assert [i for i in range(5) if pool.recently_evicted(chain(100 + i)[0])] == [4]
    grow(pool, chain(50))
    assert [i for i in range(5) if pool.recently_evicted(chain(i)[0])] == [3]


def test_a_damaged_chain_is_forgotten_unless_another_sequence_shares_it() -> None:
    pool = SlotPool(12)
    mine, theirs = chain(1, 2, 3), chain(1, 2, 4)
    grow(pool, mine)
    save(pool, mine[2])
    grow(pool, theirs)
    pool.forget(mine)
    assert set(pool.tree.nodes) == set(theirs)
    pool.check_integrity([])


class Machine(RuleBasedStateMachine):
    """Sequences start, complete blocks, diverge, save checkpoints and end, while slots are scarce."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(24)
        self.running: list[tuple[list[bytes], list[int]]] = []

    @rule(parts=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def start(self, parts: list[int]) -> None:
        """A sequence starts: it shares the blocks that the tree has and owns slots for the others."""
        names = chain(*parts)
        tree = self.pool.tree
        depth = tree.match(names)
        tree.acquire(names[:depth])
        slots = self.pool.take(len(names) - depth, "prompt")
        if slots is None:
            tree.release(names[:depth])
            return
        self.running.append((names, list(slots)))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def complete(self, data: st.DataObject) -> None:
        """The next block of a sequence is named, or replaced by the block that has its name."""
        names, slots = data.draw(st.sampled_from(self.running))
        if not slots:
            return
        at = len(names) - len(slots)
        slot = slots.pop(0)
        if names[at] in self.pool.tree.nodes:
            self.pool.tree.acquire([names[at]])
            self.pool.release([slot])
        else:
            self.pool.tree.insert(names[at - 1] if at else None, names[at], slot)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        """A sequence saves a checkpoint at the last block that it completed."""
        names, slots = data.draw(st.sampled_from(self.running))
        done = len(names) - len(slots)
        if done and self.pool.tree.nodes[names[done - 1]].checkpoint is None:
            taken = self.pool.take(CHECKPOINT, "checkpoint")
            if taken is not None:
                self.pool.tree.set_checkpoint(names[done - 1], taken)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """A sequence ends."""
        at = data.draw(st.integers(0, len(self.running) - 1))
        names, slots = self.running.pop(at)
        self.pool.tree.release(names[: len(names) - len(slots)])
        self.pool.release(slots)

    @invariant()
    def books_add_up(self) -> None:
        """Every slot is in one place, and all named blocks of running sequences are in the tree."""
        self.pool.check_integrity([slot for _, slots in self.running for slot in slots])
        for names, slots in self.running:
            assert self.pool.tree.match(names[: len(names) - len(slots)]) == len(names) - len(slots)

    def teardown(self) -> None:
        """Once no sequence runs, all slots are available."""
        for names, slots in self.running:
            self.pool.tree.release(names[: len(names) - len(slots)])
            self.pool.release(slots)
        assert self.pool.take(24, "prompt") is not None
        self.pool.check_integrity(range(24))


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
