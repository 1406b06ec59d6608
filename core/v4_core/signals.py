"""How a process that handles SIGINT and SIGTERM in its event loop ends. Knows no process."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def run(main: Coroutine[Any, Any, None], loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None) -> None:
    """As asyncio.run. Signals that `main` handled are ignored once it is over: one that comes while the interpreter
    ends would kill a process that has done all it was to do."""
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main)
        for number in (signal.SIGINT, signal.SIGTERM):
            if runner.get_loop().remove_signal_handler(number):
                signal.signal(number, signal.SIG_IGN)
