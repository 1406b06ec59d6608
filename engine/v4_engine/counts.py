"""The counts that an engine keeps, as plain numbers. The worker's collector makes metrics of them."""

from dataclasses import dataclass, field
from itertools import product
from typing import Literal, get_args

What = Literal["block", "checkpoint"]
Reason = Literal["prompt", "decode", "checkpoint", "transfer"]  # what the evicted slots are needed for
PrefixResult = Literal["hit", "replayed", "no_checkpoint", "evicted", "no_blocks"]


def _no_evictions() -> dict[tuple[What, Reason], int]:
    return dict.fromkeys(product(get_args(What), get_args(Reason)), 0)


def _no_tokens() -> dict[PrefixResult, int]:
    return dict.fromkeys(get_args(PrefixResult), 0)


@dataclass
class Counts:
    """Sums that only grow. The engine's thread writes them; any thread may read them, since the keys never change."""

    evictions: dict[tuple[What, Reason], int] = field(default_factory=_no_evictions)
    prefix_tokens: dict[PrefixResult, int] = field(default_factory=_no_tokens)
    prefill_tokens: int = 0  # computed for prompts, or recomputed after preemption
    drawn_tokens: int = 0  # sampled for all choices, first tokens included
    preemptions: int = 0

    def admit(self, tokens: int, matched: int, start: int, replays: bool, evicted: int) -> None:
        """Count the tokens of an admitted prompt by what the prefix cache had of them.

        The prefix cache has blocks of the first `matched` of the prompt's `tokens`, and computing begins at position
        `start`. If `replays`, it begins there by an exact replay instead of at a checkpoint. `evicted` tokens were in
        blocks that were evicted recently.
        """
        self.prefix_tokens["hit"] += start
        self.prefix_tokens["replayed" if replays else "no_checkpoint"] += matched - start
        self.prefix_tokens["evicted"] += evicted
        self.prefix_tokens["no_blocks"] += tokens - matched - evicted
