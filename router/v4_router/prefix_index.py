"""What the router believes each worker has cached: the block chains that it sent there. A guess, and bounded.

Pure: block names in, numbers of blocks out. The cached tokens that a worker reports correct the guess.
"""

from collections import OrderedDict
from collections.abc import Sequence

DEFAULT_BLOCKS = 1 << 17  # per worker: 33 M tokens


class PrefixIndex:
    """Names of blocks of one worker, least recently used first.

    A name is born when it is first recorded. A block cannot be older than the block before it, so forgetting a block
    and recording it again makes everything that was behind it unreachable, without a tree.
    """

    def __init__(self, limit: int = DEFAULT_BLOCKS) -> None:
        self._limit = limit
        self._born: OrderedDict[bytes, int] = OrderedDict()
        self._clock = 0

    def __len__(self) -> int:
        return len(self._born)

    def match(self, names: Sequence[bytes]) -> int:
        """How many leading blocks of this chain the worker is believed to have."""
        born = 0
        for count, name in enumerate(names):
            at = self._born.get(name, -1)
            if at < born:
                return count
            born = at
        return len(names)

    def record(self, names: Sequence[bytes]) -> None:
        """The chain was sent to the worker, which will have it."""
        self._clock += 1
        known = self.match(names)
        for i in range(len(names) - 1, -1, -1):  # the root last: it is forgotten last
            if i >= known:
                self._born[names[i]] = self._clock
            self._born.move_to_end(names[i])
        while len(self._born) > self._limit:
            self._born.popitem(last=False)

    def correct(self, names: Sequence[bytes], cached_blocks: int) -> None:
        """The worker had only so many leading blocks of the chain, and computes the others now."""
        for name in names[cached_blocks:]:
            self._born.pop(name, None)
        self.record(names)

    def clear(self) -> None:
        """The worker is a new process."""
        self._born.clear()
