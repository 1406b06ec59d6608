"""Drains a worker before its process ends: running requests may finish for a time, then the rest is handed back."""

import asyncio
import logging
from collections.abc import Callable

from v4_worker.worker import Worker

log = logging.getLogger("v4serve.worker")

READ_SECONDS = 10.0  # after the deadline, for decode workers that are pulling complete caches
_POLL_SECONDS = 0.05


async def drain(worker: Worker, seconds: float, at_once: Callable[[], bool] = lambda: False) -> None:
    """Refuse new legs and return when no leg is left.

    Requests that wait for admission are handed back at once. Running requests and caches that may still be pulled are
    handed back after `seconds`. A cache that is being pulled at that time has READ_SECONDS more. Both waits end early
    once `at_once` returns true.
    """
    worker.begin_drain()
    await _wait_until(lambda: worker.idle or at_once(), seconds)
    handed_back = worker.hand_back(keep=worker.being_read())
    await _wait_until(lambda: not worker.being_read() or at_once(), READ_SECONDS)
    handed_back += worker.hand_back(keep=())
    if handed_back:
        log.warning("%d unfinished requests were handed back to their routers", handed_back)


async def _wait_until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until the condition holds, for at most `seconds`."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() >= deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)
