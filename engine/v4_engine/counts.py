"""What an engine counts of itself, in plain numbers. Knows no metrics library and nothing of who reads them."""

from dataclasses import dataclass, field
from itertools import product
from typing import Literal, get_args

What = Literal["block", "checkpoint"]
Reason = Literal["prompt", "decode", "checkpoint", "transfer"]  # for whom room is made
PrefixResult = Literal["hit", "replayed", "no_checkpoint", "evicted", "no_blocks"]


def _no_evictions() -> dict[tuple[What, Reason], int]:
    return dict.fromkeys(product(get_args(What), get_args(Reason)), 0)


def _no_tokens() -> dict[PrefixResult, int]:
    return dict.fromkeys(get_args(PrefixResult), 0)


@dataclass
class Counts:
    """Sums that only grow. Written by the engine's thread; any thread may read them, since no key comes or goes."""

    evictions: dict[tuple[What, Reason], int] = field(default_factory=_no_evictions)
    prefix_tokens: dict[PrefixResult, int] = field(default_factory=_no_tokens)
    prefill_tokens: int = 0  # computed of prompts, and again of preempted sequences
    drawn_tokens: int = 0  # of all choices, first tokens too
    preemptions: int = 0

    def admit(self, tokens: int, matched: int, start: int, replays: bool, evicted: int) -> None:
        """A prompt of `tokens` begins at position `start`, where its first `matched` tokens have blocks here.

        `replays`: it begins behind no checkpoint, but a replay before the end of the blocks. `evicted`: tokens of
        blocks that it would have found a while ago.
        """
        self.prefix_tokens["hit"] += start
        self.prefix_tokens["replayed" if replays else "no_checkpoint"] += matched - start
        self.prefix_tokens["evicted"] += evicted
        self.prefix_tokens["no_blocks"] += tokens - matched - evicted
