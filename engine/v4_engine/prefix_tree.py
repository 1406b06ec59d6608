"""The prefix cache: a tree of complete, immutable blocks named by content, some of which carry a checkpoint.

Pure and single-threaded. The tree knows names, slots and reference counts, but no memory and no tokens. Every sequence
references all nodes of its chain, so the ancestors of a referenced node are referenced too.

Eviction order: (0) unreferenced leaves without a checkpoint, which are of use to a replay only; (1) checkpoints of
unreferenced leaves; (2) other checkpoints. Within each kind, the least recently used goes first. A leaf whose
checkpoint is evicted becomes a leaf of kind 0.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from v4_engine.counts import What

Slots = tuple[int, ...]


@dataclass(eq=False)
class Node:
    """A complete block."""

    name: bytes
    parent: "Node | None"
    slot: int
    refs: int = 0
    children: int = 0
    checkpoint: Slots | None = None  # block slots that hold the packed tail at this block's end
    last_used: int = 0
    stamp: int = 0  # of the node's only valid heap entry


class Evicted(NamedTuple):
    """An evicted block or checkpoint and the slots that it frees."""

    what: What
    name: bytes  # of the block, or of the block that had the checkpoint
    slots: Slots


@dataclass(eq=False)
class PrefixTree:
    """All complete blocks of one pool."""

    nodes: dict[bytes, Node] = field(default_factory=dict)
    referenced: int = 0  # nodes with refs > 0
    checkpoint_slots: int = 0
    _clock: int = 0
    _heaps: tuple[list[tuple[int, int, Node]], ...] = field(default_factory=lambda: ([], [], []))

    def match(self, names: Sequence[bytes]) -> int:
        """Return how many leading names are in the tree."""
        for depth, name in enumerate(names):
            if name not in self.nodes:
                return depth
        return len(names)

    def resumable(self, names: Sequence[bytes], depth: int) -> int:
        """Return the depth of the deepest checkpoint among the first `depth` names, or 0 if there is none."""
        for d in range(depth, 0, -1):
            if self.nodes[names[d - 1]].checkpoint is not None:
                return d
        return 0

    def insert(self, parent: bytes | None, name: bytes, slot: int) -> Node:
        """Add a block that a sequence has just completed, with one reference.

        Its name must be new, and its parent must be in the tree.
        """
        above = None if parent is None else self.nodes[parent]
        node = Node(name, above, slot, last_used=self._tick())
        if above is not None:
            above.children += 1
            self._enqueue(above)
        self.nodes[name] = node
        self.acquire([name])
        return node

    def acquire(self, names: Sequence[bytes]) -> None:
        """Add a reference to each of these nodes."""
        now = self._tick()
        for name in names:
            node = self.nodes[name]
            first = node.refs == 0
            node.refs += 1
            node.last_used = now
            self.referenced += first
            if first or node.checkpoint is not None:
                self._enqueue(node)

    def release(self, names: Sequence[bytes]) -> None:
        """Drop one reference to each of these nodes."""
        now = self._tick()
        for name in names:
            node = self.nodes[name]
            node.refs -= 1
            node.last_used = now
            if node.refs == 0:
                self.referenced -= 1
                self._enqueue(node)

    def set_checkpoint(self, name: bytes, slots: Slots) -> None:
        """Attach a checkpoint to a node that has none."""
        node = self.nodes[name]
        assert node.checkpoint is None
        node.checkpoint = slots
        self.checkpoint_slots += len(slots)
        self._enqueue(node)

    def evict(self) -> Evicted | None:
        """Evict the least valuable block or checkpoint. Returns None if nothing can be evicted."""
        for kind, heap in enumerate(self._heaps):
            while heap:
                _, stamp, node = heapq.heappop(heap)
                if stamp != node.stamp:
                    continue
                if kind:
                    return Evicted("checkpoint", node.name, self._drop_checkpoint(node))
                return Evicted("block", node.name, self._remove(node))
        return None

    def removable(self, name: bytes) -> bool:
        """Whether the tree has a block of this name without references and without children."""
        node = self.nodes.get(name)
        return node is not None and node.refs == 0 and node.children == 0

    def remove(self, name: bytes) -> Slots:
        """Remove a removable block. Returns its slot and those of its checkpoint."""
        node = self.nodes[name]
        return (*self._drop_checkpoint(node), *self._remove(node))

    @property
    def evictable(self) -> int:
        """Slots that eviction can free in all."""
        return len(self.nodes) - self.referenced + self.checkpoint_slots

    def _drop_checkpoint(self, node: Node) -> Slots:
        slots = node.checkpoint or ()
        node.checkpoint = None
        self.checkpoint_slots -= len(slots)
        self._enqueue(node)
        return slots

    def _remove(self, node: Node) -> Slots:
        del self.nodes[node.name]
        if node.parent is not None:
            node.parent.children -= 1
            self._enqueue(node.parent)
        return (node.slot,)

    def _enqueue(self, node: Node) -> None:
        """Enter the node in the heap of its eviction kind, if it has any. Older entries of the node become invalid."""
        self._clock += 1
        node.stamp = self._clock
        leaf = node.refs == 0 and node.children == 0
        if node.checkpoint is None and not leaf:
            return
        heap = self._heaps[0 if node.checkpoint is None else 1 if leaf else 2]
        heapq.heappush(heap, (node.last_used, node.stamp, node))
        if len(heap) > 64 + 4 * len(self.nodes):
            heap[:] = [entry for entry in heap if entry[1] == entry[2].stamp]
            heapq.heapify(heap)

    def _tick(self) -> int:
        self._clock += 1
        return self._clock
