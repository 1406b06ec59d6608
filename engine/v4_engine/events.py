"""What a step reports of the requests that it worked on. A worker turns these events into messages."""

from dataclasses import dataclass

from v4_engine.sampler import Drawn
from v4_engine.sequence import Finish, Request


@dataclass(frozen=True)
class Admitted:
    """A request has its memory. The first `cached` tokens of its prompt are not computed again."""

    request: Request
    cached: int


@dataclass(frozen=True)
class Token:
    """A token of one choice; `index` is its position in the choice's output."""

    request: Request
    choice: int
    index: int
    drawn: Drawn
    finish: Finish | None


@dataclass(frozen=True)
class Progress:
    """The first `complete` blocks of a prefill request are complete; they are in the first `complete` of `slots`."""

    request: Request
    slots: tuple[int, ...]
    complete: int


@dataclass(frozen=True)
class Parked:
    """A prefill request has ended, and `firsts` are the first tokens of its choices.

    As a decode worker may be reading its cache, the cache stays in `slots` and `tail` until the request is dropped.
    """

    request: Request
    slots: tuple[int, ...]
    tail: int
    firsts: tuple[Token, ...]


@dataclass(frozen=True)
class Broken:
    """A request was given up with all its choices, since its state cannot be trusted.

    A prefill request keeps its memory until it is dropped.
    """

    request: Request
    message: str


Event = Admitted | Token | Progress | Parked | Broken
