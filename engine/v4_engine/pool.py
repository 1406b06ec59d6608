"""The block slots of one arena: each is free, owned by a sequence, or in the prefix tree as a block or in a checkpoint.

Pure bookkeeping; the memory itself is in stores.CacheMemory.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

from v4_engine.counts import Counts, Reason
from v4_engine.errors import IntegrityError
from v4_engine.prefix_tree import PrefixTree, Slots


class SlotPool:
    """Hands out slots, and evicts from the tree when the free list is too short."""

    def __init__(self, slots: int) -> None:
        self.total = slots
        self.tree = PrefixTree()
        self.counts = Counts()
        self._evicted: OrderedDict[bytes, None] = OrderedDict()  # names of the last `slots` blocks, oldest first
        self._free = list(range(slots - 1, -1, -1))

    @property
    def free(self) -> int:
        """Slots on the free list."""
        return len(self._free)

    @property
    def available(self) -> int:
        """Slots that `take` can hand out: those that are free and those that eviction can free."""
        return len(self._free) + self.tree.evictable

    def take(self, count: int, reason: Reason) -> Slots | None:
        """Take `count` slots for one owner. Returns None, with nothing changed, if there are not that many."""
        if count > self.available:
            return None
        while len(self._free) < count:
            self._evict(reason)
        taken = tuple(self._free[len(self._free) - count :])
        del self._free[len(self._free) - count :]
        return taken

    def recently_evicted(self, name: bytes) -> bool:
        """Whether a block of this name is among the last evicted."""
        return name in self._evicted

    def _evict(self, reason: Reason) -> None:
        evicted = self.tree.evict()
        assert evicted is not None
        self._free += evicted.slots
        self.counts.evictions[evicted.what, reason] += 1
        if evicted.what == "block":
            self._evicted[evicted.name] = None
            self._evicted.move_to_end(evicted.name)
            if len(self._evicted) > self.total:
                self._evicted.popitem(last=False)

    def release(self, slots: Iterable[int]) -> None:
        """Put owned slots on the free list."""
        self._free += slots

    def forget(self, names: Sequence[bytes]) -> None:
        """Remove the blocks of a chain from the tree, the deepest first.

        Blocks stay that a sequence references or that have other children.
        """
        for name in reversed(names):
            if self.tree.removable(name):
                self._free += self.tree.remove(name)

    def check_integrity(self, owned: Iterable[int]) -> None:
        """Raise IntegrityError unless every slot is in exactly one place.

        The places are the free list, `owned` by sequences, a block, and a checkpoint.
        """
        nodes = self.tree.nodes.values()
        blocks = [node.slot for node in nodes]
        checkpoints = [slot for node in nodes for slot in node.checkpoint or ()]
        places = sorted([*self._free, *owned, *blocks, *checkpoints])
        if places != list(range(self.total)):
            lost = set(range(self.total)) - set(places)
            twice = {slot for slot in places if places.count(slot) > 1} if len(places) < 10_000 else set()
            raise IntegrityError(f"slots lost: {sorted(lost)[:8]}, held twice: {sorted(twice)[:8]}")
        if self.tree.referenced != sum(node.refs > 0 for node in nodes) or self.tree.checkpoint_slots != len(
            checkpoints
        ):
            raise IntegrityError("the prefix tree's counters do not match its nodes")
