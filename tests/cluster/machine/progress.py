"""Says on standard error what takes long: a line when a step begins, and another every few seconds until it ends.

Lines start with the time since the first one. They are plain: the same on a terminal, in a log, and from two threads.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_EVERY_SECONDS = 20.0


def say(text: str) -> None:
    """One line."""
    seconds = int(time.monotonic() - _began())
    sys.stderr.write(f"[{seconds // 60:2d}:{seconds % 60:02d}] {text}\n")  # one write, so that lines do not mix
    sys.stderr.flush()


@contextmanager
def step(what: str, state: Callable[[], str] | None = None, every: float = _EVERY_SECONDS) -> Iterator[None]:
    """Say that `what` begins and, every so many seconds, that it goes on; `state` says how far it is."""
    say(what)
    ended = threading.Event()

    def remind() -> None:
        while not ended.wait(every):
            say(f"{what}: {state() if state else 'still at it'}")

    reminder = threading.Thread(target=remind, daemon=True)
    reminder.start()
    try:
        yield
    finally:
        ended.set()
        reminder.join()


@functools.cache
def _began() -> float:
    return time.monotonic()
