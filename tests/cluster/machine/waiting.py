"""Waits for a condition by asking again and again, with a deadline."""

import time
from collections.abc import Callable
from typing import TypeVar

from tests.cluster.machine.errors import ClusterError

T = TypeVar("T")

_POLL_SECONDS = 0.1


class TimedOut(ClusterError):
    """The condition did not come true in time."""


def _nothing() -> None:
    pass


def wait(condition: Callable[[], T], seconds: float, what: str, check: Callable[[], None] = _nothing) -> T:
    """The first true value of `condition`, asked ten times a second; `what` completes "waited in vain until".

    `check` is called between and may raise why it will never come true. Raises TimedOut.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        check()
        if time.monotonic() > deadline:
            raise TimedOut(f"waited {seconds:g} s in vain until {what}; the last answer was {value!r}")
        time.sleep(_POLL_SECONDS)
    return value
