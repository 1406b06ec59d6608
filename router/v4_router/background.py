"""Background tasks that run as long as the router does."""

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType

log = logging.getLogger(__name__)


class Background:
    """Owns tasks, and cancels them when it exits as an async context manager.

    A task that raises is a bug: the error is logged, and `broken` becomes true.
    """

    def __init__(self) -> None:
        self.broken = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Background":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, work: Coroutine[None, None, None]) -> None:
        """Runs `work` as a task of its own."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = True
            log.critical("a background task of the router failed: restart the router", exc_info=error)
