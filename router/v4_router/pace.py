"""Estimates the time to a prompt's first token from earlier prompts. Pure; placement does not use it."""

import math
from dataclasses import dataclass

from v4_core.blocks import BLOCK_TOKENS

_FORGETTING = 0.1  # share of the weight of earlier prompts that each long prompt removes


class Pace:
    """Prompt tokens per second of one prefill worker: a decaying mean over its latest prompts.

    A prompt's time in the queue is included, and so are the tokens ahead of it there. The mean is geometric, so that a
    single stall changes it little. A long prompt has more weight than a short one, whose time depends on the length of
    a step rather than on its number of tokens.
    """

    def __init__(self) -> None:
        self._log = 0.0
        self._weight = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Adds an observation: `tokens`, including those ahead in the queue, were computed in `seconds`."""
        if tokens <= 0 or seconds <= 0.0:
            return
        weight = tokens / (tokens + BLOCK_TOKENS)
        self._weight = self._weight * (1.0 - _FORGETTING * weight) + weight
        self._log += (math.log(tokens / seconds) - self._log) * weight / self._weight

    def seconds(self, tokens: int) -> float | None:
        """Returns the expected seconds to compute `tokens`, or None before the first observation."""
        return tokens / math.exp(self._log) if self._weight else None


@dataclass(slots=True)
class Awaited:
    """A prompt that was sent to a prefill worker and has no first token yet."""

    pace: Pace  # of that worker
    queued: int  # prompt tokens ahead of this prompt when it was sent
    uncached: int  # tokens of this prompt to compute; a guess until the worker has started it
    sent: float  # s, on any one clock
    expected: float | None = None  # s from `sent` to the first token

    def expect(self) -> float | None:
        """Sets and returns the expected seconds to the first token; None before the worker's first observation."""
        self.expected = self.pace.seconds(self.queued + self.uncached)
        return self.expected

    def came(self, now: float) -> float | None:
        """Adds the observation of the first token at `now`.

        Returns the actual time divided by the expected time, or None if there was no expectation.
        """
        seconds = now - self.sent
        self.pace.add(self.queued + self.uncached, seconds)
        return seconds / self.expected if self.expected else None
