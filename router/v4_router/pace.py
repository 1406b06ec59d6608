"""How long a prompt may take to its first token, learned from those before it. Pure; no placement depends on it."""

import math
from dataclasses import dataclass

from v4_core.blocks import BLOCK_TOKENS

_FORGETTING = 0.1  # of all earlier prompts, by each long one


class Pace:
    """Prompt tokens per second of one prefill worker: a mean over its latest prompts, queues included.

    The mean is geometric, so that one stall moves it little. Long prompts count more than short ones, whose time is
    that of a step rather than of their tokens.
    """

    def __init__(self) -> None:
        self._log = 0.0
        self._weight = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """So many tokens, those ahead in the queue among them, came through in so many seconds."""
        if tokens <= 0 or seconds <= 0.0:
            return
        weight = tokens / (tokens + BLOCK_TOKENS)
        self._weight = self._weight * (1.0 - _FORGETTING * weight) + weight
        self._log += (math.log(tokens / seconds) - self._log) * weight / self._weight

    def seconds(self, tokens: int) -> float | None:
        """That so many tokens may take; None before anything was measured."""
        return tokens / math.exp(self._log) if self._weight else None


@dataclass(slots=True)
class Awaited:
    """A prompt that was sent to a prefill worker, until its first token."""

    pace: Pace  # of that worker
    queued: int  # prompt tokens ahead of it when it was sent
    uncached: int  # its own that are to be computed: a guess until the worker began
    sent: float  # s, on any one clock
    expected: float | None = None  # s from then to the first token

    def expect(self) -> float | None:
        """Estimate now, by what the worker did so far."""
        self.expected = self.pace.seconds(self.queued + self.uncached)
        return self.expected

    def came(self, now: float) -> float | None:
        """The first token is here: learn from it. Real time over expected time, if one was."""
        seconds = now - self.sent
        self.pace.add(self.queued + self.uncached, seconds)
        return seconds / self.expected if self.expected else None
