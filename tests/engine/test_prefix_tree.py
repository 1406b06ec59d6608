"""The prefix tree and its pool: books that always add up, and an eviction order that is the written one."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from v4_engine.pool import SlotPool

CHECKPOINT = 2


def chain(*parts: int) -> list[bytes]:
    """Names of a chain whose blocks hold these contents."""
    return [bytes(parts[: i + 1]) for i in range(len(parts))]


def grow(pool: SlotPool, names: list[bytes]) -> None:
    """Complete these blocks, as a sequence that then ends."""
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
    gone: list[str] = []
    while pool.tree.nodes:
        before = {name: node.checkpoint for name, node in pool.tree.nodes.items()}
        evicted = pool.tree.evict()
        assert evicted is not None
        pool.release(evicted.slots)
        for name, checkpoint in before.items():
            if name not in pool.tree.nodes:
                gone.append(f"block {name.hex()}")
            elif checkpoint and pool.tree.nodes[name].checkpoint is None:
                gone.append(f"checkpoint {name.hex()}")
        assert gone[-1] == f"{evicted.what} {evicted.name.hex()}"
    assert pool.tree.evict() is None
    assert gone == [
        "block 010203",  # behind the last checkpoint, deepest first
        "block 0102",
        "checkpoint 01",  # least recently used of the leaves' checkpoints
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
    gone = [pool.tree.evict() for _ in range(4)]
    assert [(evicted.what, evicted.name) for evicted in gone if evicted is not None] == [
        ("checkpoint", long[1]),
        ("block", long[1]),
        ("checkpoint", long[0]),  # of a leaf now
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


def test_evictions_are_counted_by_what_went_and_for_whom() -> None:
    pool = SlotPool(5)
    names = chain(1, 2)
    grow(pool, names)
    save(pool, names[1])
    assert pool.take(1, "transfer")  # the free one
    assert not any(pool.counts.evictions.values())
    assert pool.take(1, "decode")
    assert pool.take(2, "transfer")
    assert pool.take(2, "prompt") is None, "one is left, and stays"
    assert {key: count for key, count in pool.counts.evictions.items() if count} == {
        ("checkpoint", "decode"): 1,
        ("block", "transfer"): 1,
    }
    assert pool.recently_evicted(names[1])
    assert not pool.recently_evicted(names[0])


def test_the_last_names_to_go_are_known_as_many_as_there_are_slots() -> None:
    pool = SlotPool(2)
    for i in [*range(5), 3]:
        grow(pool, chain(i))
        grow(pool, chain(100 + i))
    assert [i for i in range(5) if pool.recently_evicted(chain(i)[0])] == [4]
    assert [i for i in range(5) if pool.recently_evicted(chain(100 + i)[0])] == [4]
    grow(pool, chain(50))
    assert [i for i in range(5) if pool.recently_evicted(chain(i)[0])] == [3]


def test_a_chain_that_is_not_trusted_is_forgotten_as_far_as_it_is_nobody_elses() -> None:
    pool = SlotPool(12)
    mine, theirs = chain(1, 2, 3), chain(1, 2, 4)
    grow(pool, mine)
    save(pool, mine[2])
    grow(pool, theirs)
    pool.forget(mine)
    assert set(pool.tree.nodes) == set(theirs)
    pool.check_integrity([])


class Machine(RuleBasedStateMachine):
    """Sequences come, complete blocks, fork off, save checkpoints and leave; slots are scarce."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = SlotPool(24)
        self.running: list[tuple[list[bytes], list[int]]] = []

    @rule(parts=st.lists(st.integers(0, 2), min_size=1, max_size=6))
    def start(self, parts: list[int]) -> None:
        """A sequence shares what is there and owns slots for the rest."""
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
        """The next block of a sequence gets its name, or gives way to the one that has it."""
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
        """A sequence saves its state at the last block that it completed."""
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
        """Every slot is in one place, and a running sequence's blocks are all there."""
        self.pool.check_integrity([slot for _, slots in self.running for slot in slots])
        for names, slots in self.running:
            assert self.pool.tree.match(names[: len(names) - len(slots)]) == len(names) - len(slots)

    def teardown(self) -> None:
        """With nobody left, everything can be had."""
        for names, slots in self.running:
            self.pool.tree.release(names[: len(names) - len(slots)])
            self.pool.release(slots)
        assert self.pool.take(24, "prompt") is not None
        self.pool.check_integrity(range(24))


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
