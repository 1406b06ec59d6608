"""The state of one prompt's generation: its choices, and the groups of choices that run together. Records only.

A prompt begins with one group that holds all of its choices. After a failure that follows the first token, each
unfinished choice continues in a group of its own. Only `advance` and what it calls write to these records.
"""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from v4_core.blocks import block_names, pack_ids
from v4_core.v1 import worker_pb2 as pb
from v4_router.errors import RouterError
from v4_router.generation import GenerationRequest


class RemoteLeg(NamedTuple):
    """The router's handle to a leg: one phase of one attempt, running on one worker."""

    request: str
    attempt: int
    phase: pb.Phase
    worker: str  # address


class Queue(Enum):
    """Where a group stands in the queue for room on a decode worker."""

    OUT = "out"  # has no place in the queue
    WAITING = "waiting"  # its cache waits at the prefill worker for a decode worker with room
    CALLED = "called"  # its cache was offered to a decode worker, which has not adopted it yet
    HELD = "held"  # it keeps its place while its prompt is computed again


@dataclass(slots=True)
class Choice:
    """One output as it grows."""

    ids: list[int] = field(default_factory=list)
    finished: bool = False
    ended: bool = False  # finished, and the worker said so: the choice no longer runs there
    early: list[pb.Tokens] = field(default_factory=list)  # from decode, received before prefill's first token


@dataclass(slots=True)
class Prompt:
    """What all groups of one prompt share."""

    request: GenerationRequest
    choices: list[Choice] = field(init=False)
    splits: int = 0  # choices that continued in a group of their own
    cached_tokens: int = 0  # prompt tokens found in the worker's cache, by the latest leg before the first token
    retries: int = 0
    prefill: str = "-"  # workers of the latest legs; "-" = there was none
    decode: str = "-"
    reason: str = ""  # of the latest placement
    adopted: pb.Adopted | None = None  # the latest transfer
    last_error: RouterError | None = None
    overloaded: RouterError | None = None  # the latest refusal of a full worker

    def __post_init__(self) -> None:
        self.choices = [Choice() for _ in range(self.request.n)]

    @property
    def emitted(self) -> bool:
        """Whether any choice has a token."""
        return any(choice.ids for choice in self.choices)


@dataclass(eq=False, slots=True)
class ChoiceGroup:
    """Choices that run together under one request id."""

    prompt: Prompt
    request: str  # id under which workers know the group
    choices: tuple[int, ...]
    base: int = 0  # output tokens that each choice began with; greater than 0 only in a group of one choice
    attempt: int = -1  # the highest so far
    tries: int = 0  # failures since the last new token
    paused_seconds: float = 0.0  # since the last new token, while no worker could take the group
    refused: set[str] = field(default_factory=set)  # workers to avoid until a new token arrives
    failed: set[str] = field(default_factory=set)  # workers to avoid as long as there are others
    queue: Queue = Queue.OUT
    prefill: RemoteLeg | None = None
    decode: RemoteLeg | None = None  # its phase is WHOLE or DECODE
    lease: int = 0  # of the prefill leg
    adopted: bool = False  # the decode leg has the cache
    cached_guess: int = 0  # prompt tokens that the prefill worker was believed to have cached
    over: bool = False
    names: list[bytes] = field(init=False)  # of the complete blocks of the prompt and the first `base` output tokens

    def __post_init__(self) -> None:
        request = self.prompt.request
        self.names = block_names(request.prompt + self.output_ids, salt=request.tenant)

    @property
    def output_ids(self) -> bytes:
        """The output that the group began with, packed."""
        return pack_ids(self.prompt.choices[self.choices[0]].ids[: self.base])

    @property
    def tokens(self) -> int:
        """Tokens of the prompt and of the output that the group began with."""
        return len(self.prompt.request.prompt) // 4 + self.base

    def only(self, choice: int) -> "ChoiceGroup":
        """A new group that continues one of the choices; keeps what was learned about workers."""
        base = len(self.prompt.choices[choice].ids)
        return ChoiceGroup(
            self.prompt,
            f"{self.prompt.request.id}.c{choice}.{self.prompt.splits}",
            (choice,),
            base,
            tries=self.tries,
            paused_seconds=self.paused_seconds,
            refused=set(self.refused),
            failed=set(self.failed),
            queue=Queue.OUT if self.queue is Queue.OUT else Queue.HELD,
        )

    def progressed(self) -> None:
        """A new token arrived: earlier failures no longer count."""
        self.tries, self.paused_seconds = 0, 0.0
        self.refused.clear()
        self.failed.clear()
