"""What one step does, and how the tokens of a step are divided among the running sequences.

A step computes at most `chunk_tokens` tokens. Every decoding sequence gets one of them; prompts get the rest, in the
order in which they were admitted.
"""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field

from v4_engine.sequence import Sequence


@dataclass(frozen=True)
class Work:
    """The next `count` tokens of a sequence; `captures` are pairs (boundary, scratch tail)."""

    sequence: Sequence
    count: int
    captures: tuple[tuple[int, int], ...] = ()

    @property
    def of_prompt(self) -> bool:
        """Whether the tokens belong to a prompt or are recomputed after preemption.

        Valid until the work is recorded.
        """
        return self.sequence.remaining > 1 or self.sequence.computed < self.sequence.request.tokens


@dataclass(frozen=True)
class Restore:
    """Unpack the checkpoint in `slots`, which is the state after `boundary` tokens, into a tail."""

    slots: tuple[int, ...]
    boundary: int
    tail: int


@dataclass
class Schedule:
    """What the engine does in one step: first the restores, then the work."""

    admitted: list[Sequence] = field(default_factory=list)  # got memory for the first time
    started: list[Sequence] = field(default_factory=list)  # got memory: admitted, or back after preemption
    restores: list[Restore] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    prefill_tokens: int = 0  # tokens of the work that is of prompts
    decode_tokens: int = 0  # tokens of the other work


def divide(running: Seq[Sequence], chunk_tokens: int, scratch: list[int]) -> list[Work]:
    """Return the work of one step.

    `scratch` are the tails that can capture a state inside a chunk. Those that the work uses are removed from the list.
    """
    work = [Work(sequence, 1) for sequence in running if sequence.remaining == 1]
    budget = chunk_tokens - len(work)
    for sequence in running:
        if sequence.remaining > 1 and budget > 0:
            chunk = _chunk(sequence, min(budget, sequence.remaining), scratch)
            budget -= chunk.count
            work.append(chunk)
    return work


def _chunk(sequence: Sequence, count: int, scratch: list[int]) -> Work:
    """Return the next `count` tokens, or fewer: the chunk ends at the first boundary without a scratch tail."""
    start = sequence.computed
    captures: list[tuple[int, int]] = []
    for boundary in sequence.boundaries:
        if start < boundary < start + count:
            if not scratch:
                return Work(sequence, boundary - start, tuple(captures))
            captures.append((boundary, scratch.pop()))
    return Work(sequence, count, tuple(captures))
