"""Tasks that run beside requests, for as long as the router does."""

import asyncio
import logging
from collections.abc import Coroutine
from types import TracebackType

log = logging.getLogger(__name__)


class Background:
    """Owns tasks, as an async context manager that cancels them. One that breaks is a bug, and is told by `broken`."""

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
        """Run this until it returns."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.broken = True
            log.critical("a part of the router broke: it must be restarted", exc_info=error)
