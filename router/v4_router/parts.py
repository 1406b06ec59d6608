"""What a flow keeps of a prompt's choices, and of the legs that compute them. Records only."""

from dataclasses import dataclass, field

from v4_core.v1 import worker_pb2 as pb
from v4_router.pace import Awaited
from v4_router.workers import Leg


@dataclass(slots=True)
class Choice:
    """One output as it grows."""

    ids: list[int] = field(default_factory=list)
    finished: bool = False
    ended: bool = False  # finished, and by the worker's own word: nothing runs there for it
    early: list[pb.Tokens] = field(default_factory=list)  # of decode, before prefill's first token came


@dataclass(eq=False, slots=True)
class Part:
    """Choices that move together under one request id."""

    request: str
    choices: tuple[int, ...]
    base: int = 0  # output tokens that each choice began with; more than 0 only for a choice alone
    attempt: int = -1  # highest sent so far
    tries: int = 0  # since the last new token
    waited: float = 0.0  # s, likewise, for anybody to take it
    refused: set[str] = field(default_factory=set)  # workers that said no in these tries
    failed: set[str] = field(default_factory=set)  # workers that may do better another time
    waits: bool = False  # in the line for room on a decode worker
    prefill: Leg | None = None
    decode: Leg | None = None  # of kind WHOLE or DECODE
    lease: int = 0
    names: list[bytes] = field(default_factory=list)  # of the blocks of prompt and base
    cached_guess: int = 0
    awaited: Awaited | None = None  # prefill's first token
    adopted: bool = False

    def alone(self, request: str, choice: int, base: int) -> "Part":
        """One of the choices, to go on by itself from so many tokens, with what was learned in the tries so far."""
        return Part(
            request,
            (choice,),
            base,
            tries=self.tries,
            waited=self.waited,
            refused=set(self.refused),
            failed=set(self.failed),
        )

    def moved_on(self) -> None:
        """A new token came: earlier failures count no more."""
        self.tries = 0
        self.waited = 0.0
        self.refused.clear()
        self.failed.clear()
