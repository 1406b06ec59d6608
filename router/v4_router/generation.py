"""What is to be generated from a prompt, and the types that a flow and the loop of its request exchange."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from v4_core.sampling import Sampling
from v4_core.tracing import NO_CONTEXT, Attributes, Context
from v4_core.v1 import worker_pb2 as pb


@dataclass(frozen=True)
class GenerationRequest:
    """What is to be generated from one prompt."""

    id: str
    prompt: bytes  # packed uint32 ids
    n: int
    max_tokens: int  # of output per choice
    sampling: Sampling
    deadline: float  # on the event loop's clock
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    tenant: bytes = b""  # cached blocks are shared only within a tenant
    trace: Context = NO_CONTEXT  # parent of the workers' spans; empty = the request is not traced


@dataclass(slots=True)
class Emit:
    """New tokens of one choice."""

    choice: int
    ids: list[int]
    logprobs: list[pb.TokenLogprobs]  # one per id, if the request wants them
    finish: str | None = None  # stop | length


@dataclass(frozen=True, slots=True)
class Mark:
    """An event in the trace of a request."""

    name: str
    at: float  # seconds, on the clock of the request's timing
    facts: Attributes


Note = Callable[[], list[Emit]]  # handles something that happened, and returns the new tokens


class Inbox(Protocol):
    """The loop of a request, which calls notes one after another."""

    def post(self, note: Note, after_seconds: float = 0.0) -> None:
        """Queues a note, after a delay if one is given."""

    def seconds_left(self) -> float:
        """Returns the seconds until the request's deadline."""
