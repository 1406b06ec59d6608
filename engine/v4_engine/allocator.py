"""The memory of sequences: block slots and live tails.

Pure bookkeeping over a SlotPool. A sequence's complete blocks are named: they are in the prefix tree, where sequences
share them. Its other slots belong to the sequence alone.
"""

from collections.abc import Iterable

from v4_core.blocks import BLOCK_TOKENS
from v4_engine.counts import Reason
from v4_engine.errors import IntegrityError
from v4_engine.pool import SlotPool
from v4_engine.sequence import Sequence


class Allocator:
    """Gives sequences their slots and tails, and takes them back."""

    def __init__(self, pool: SlotPool, tails: int, checkpoint_slots: int) -> None:
        self._pool, self._tails, self._checkpoint_slots = pool, tails, checkpoint_slots
        self._free_tails = list(range(tails - 1, -1, -1))

    @property
    def tails_free(self) -> int:
        """Live tails that no sequence holds."""
        return len(self._free_tails)

    def need(self, tokens: int, shared: int, decodes: bool, forks: int) -> int:
        """Return the slots that a sequence of `tokens` and its forks must own if `shared` of its blocks are in the
        tree.

        A sequence that decodes here also owns the block that it grows into and its rolling checkpoint. A fork owns the
        same and a copy of the open block.
        """
        blocks = -(-tokens // BLOCK_TOKENS) - shared
        growth = 1 + self._checkpoint_slots if decodes else 0
        return blocks + growth + forks * (growth + (tokens % BLOCK_TOKENS > 0))

    def allocate(self, sequence: Sequence, depth: int, reason: Reason) -> bool:
        """Give a sequence and its forks all their memory, sharing the first `depth` blocks.

        Returns False, with nothing changed, if there is not enough.
        """
        tree, tokens, decodes = self._pool.tree, len(sequence.ids), sequence.request.phase != "prefill"
        family = [sequence, *sequence.forks]
        need = self.need(tokens, depth, decodes, len(sequence.forks))
        if len(self._free_tails) < len(family) or need > self._pool.available:
            return False
        tree.acquire(sequence.names[:depth])  # before `take`, which could evict them
        taken = self._pool.take(need, reason)
        if taken is None:
            tree.release(sequence.names[:depth])
            return False
        free = list(taken)
        sequence.slots = [tree.nodes[name].slot for name in sequence.names[:depth]]
        sequence.named = depth
        for member in family:
            own = -(-tokens // BLOCK_TOKENS) - depth if member is sequence else int(tokens % BLOCK_TOKENS > 0)
            member.slots += _split(free, own + decodes)
            member.rolling, member.rolling_at = tuple(_split(free, self._checkpoint_slots if decodes else 0)), 0
            member.tail = self._free_tails.pop()
        return True

    def grow(self, sequence: Sequence) -> bool:
        """Give a decoding sequence one more block slot. Returns False if none is free or evictable."""
        taken = self._pool.take(1, "decode")
        if taken is None:
            return False
        sequence.slots += taken
        return True

    def share(self, sequence: Sequence, fork: Sequence) -> None:
        """Put the named blocks of a sequence in front of the slots of its fork."""
        self._pool.tree.acquire(sequence.names[: sequence.named])
        fork.slots[:0] = sequence.slots[: sequence.named]
        fork.names, fork.named = list(sequence.names), sequence.named

    def name_next(self, sequence: Sequence) -> bool:
        """Put the sequence's next complete block into the tree.

        If the tree already has a block of that name, the sequence uses that block and frees its own. Returns True if
        it freed one.
        """
        index, tree = sequence.named, self._pool.tree
        name = sequence.names[index]
        node = tree.nodes.get(name)
        if node is None:
            tree.insert(sequence.names[index - 1] if index else None, name, sequence.slots[index])
        else:
            tree.acquire([name])
            self._pool.release([sequence.slots[index]])
            sequence.slots[index] = node.slot
        sequence.named += 1
        return node is not None

    def checkpoint(self, sequence: Sequence, boundary: int) -> tuple[int, ...] | None:
        """Return slots for a checkpoint at a boundary that was just computed, and attach them to its block.

        Returns None if the block has a checkpoint already, or if there are not enough slots.
        """
        name = sequence.names[boundary // BLOCK_TOKENS - 1]
        if self._pool.tree.nodes[name].checkpoint is not None:
            return None
        slots = self._pool.take(self._checkpoint_slots, "checkpoint")
        if slots is not None:
            self._pool.tree.set_checkpoint(name, slots)
        return slots

    def release(self, sequence: Sequence) -> None:
        """Take back the memory of a sequence and its forks.

        Named blocks stay in the tree until they are evicted. The rolling checkpoint stays too if its block has no
        other.
        """
        tree = self._pool.tree
        for member in (sequence, *sequence.forks):
            if member.rolling_at:
                name = member.names[member.rolling_at // BLOCK_TOKENS - 1]
                if name in tree.nodes and tree.nodes[name].checkpoint is None:
                    tree.set_checkpoint(name, member.rolling)
                    member.rolling = ()
            self._pool.release((*member.slots[member.named :], *member.rolling))
            tree.release(member.names[: member.named])
            if member.tail is not None:
                self._free_tails.append(member.tail)
            member.slots, member.named, member.rolling, member.rolling_at, member.tail = [], 0, (), 0, None

    def check_integrity(self, sequences: Iterable[Sequence]) -> None:
        """Raise IntegrityError unless every slot and tail is either free or held exactly once.

        `sequences` are all that may hold memory.
        """
        owned: list[int] = []
        tails = list(self._free_tails)
        for sequence in sequences:
            owned += sequence.slots[sequence.named :]
            owned += sequence.rolling
            tails += [] if sequence.tail is None else [sequence.tail]
        self._pool.check_integrity(owned)
        if sorted(tails) != list(range(self._tails)):
            raise IntegrityError(f"tails are lost or held twice: {sorted(tails)}")


def _split(items: list[int], count: int) -> list[int]:
    """Remove the first `count` items from a list and return them."""
    taken = items[:count]
    del items[:count]
    return taken
