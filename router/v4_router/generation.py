"""What is to be generated from a prompt, and the words in which a flow and its loop speak of it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from v4_core.sampling import Sampling
from v4_core.tracing import NO_CONTEXT, Attributes, Context
from v4_core.v1 import worker_pb2 as pb


@dataclass(frozen=True)
class Generation:
    """What is to be generated from one prompt."""

    id: str
    prompt: bytes  # packed uint32 ids
    n: int
    max_tokens: int  # of output per choice
    sampling: Sampling
    deadline: float  # on the event loop's clock
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    tenant: bytes = b""  # shares no cached block with any other
    trace: Context = NO_CONTEXT  # that workers' spans belong to; empty = nobody traces


@dataclass(slots=True)
class Emit:
    """New tokens of one choice."""

    choice: int
    ids: list[int]
    logprobs: list[pb.TokenLogprobs]  # one per id, if asked for
    finish: str | None = None  # stop | length


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened to a flow, for its trace."""

    name: str
    at: float  # seconds, on the clock of the request's timing
    facts: Attributes


Note = Callable[[], list[Emit]]  # something that happened; called, it does what follows and gives new tokens


class Inbox(Protocol):
    """The loop that a flow lives in, which calls notes one after another."""

    def post(self, note: Note, after_seconds: float = 0.0) -> None:
        """Have the note called in its turn."""

    def seconds_left(self) -> float:
        """Until the request's deadline."""
