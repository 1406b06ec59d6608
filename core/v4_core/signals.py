"""Runs an event loop whose program handles SIGINT and SIGTERM, and ends it safely. Knows no process."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, None], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    """Like asyncio.run, but ignores the signals that `main` handled once `main` has ended.

    A signal during the interpreter's shutdown would otherwise kill a process that has finished its work.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main)
        for number in (signal.SIGINT, signal.SIGTERM):
            if runner.get_loop().remove_signal_handler(number):
                signal.signal(number, signal.SIG_IGN)
