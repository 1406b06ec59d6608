"""The router's bounded estimate of what each worker has cached: the block chains of prompts sent to the worker.

Pure: takes names of blocks and returns numbers of blocks. The estimate is corrected by the number of cached tokens that
a worker reports for each prompt.
"""

from collections import OrderedDict
from collections.abc import Sequence

DEFAULT_BLOCKS = 1 << 17  # per worker: 33 M tokens


class PrefixIndex:
    """The names of one worker's blocks in LRU order, each with the time at which it was recorded.

    A block cannot have been recorded before its predecessor in the chain. So if a block was evicted and recorded again,
    its successors of the earlier time no longer match: the index needs no tree.
    """

    def __init__(self, limit: int = DEFAULT_BLOCKS) -> None:
        self._limit = limit
        self._born: OrderedDict[bytes, int] = OrderedDict()
        self._clock = 0

    def __len__(self) -> int:
        return len(self._born)

    def match(self, names: Sequence[bytes]) -> int:
        """Returns how many leading blocks of the chain the worker is estimated to have."""
        born = 0
        for count, name in enumerate(names):
            at = self._born.get(name, -1)
            if at < born:
                return count
            born = at
        return len(names)

    def record(self, names: Sequence[bytes]) -> None:
        """Adds the chain of a prompt that was sent to the worker."""
        self._clock += 1
        known = self.match(names)
        for i in range(len(names) - 1, -1, -1):  # the chain's first block last, so that it is evicted last
            if i >= known:
                self._born[names[i]] = self._clock
            self._born.move_to_end(names[i])
        while len(self._born) > self._limit:
            self._born.popitem(last=False)

    def correct(self, names: Sequence[bytes], cached_blocks: int) -> None:
        """Corrects the estimate: the worker had `cached_blocks` leading blocks of the chain, and computes the rest."""
        for name in names[cached_blocks:]:
            self._born.pop(name, None)
        self.record(names)

    def clear(self) -> None:
        """Forgets all blocks, since the worker was restarted."""
        self._born.clear()
