"""How a worker comes to rest before its process ends: what runs may finish for a time, the rest is handed back."""

import asyncio
import logging
from collections.abc import Callable

from v4_worker.worker import Worker

log = logging.getLogger("v4serve.worker")

READ_SECONDS = 10.0  # beyond the deadline, for caches that a decode worker is about to have whole
_POLL_SECONDS = 0.05


async def drain(worker: Worker, seconds: float, at_once: Callable[[], bool] = lambda: False) -> None:
    """Refuse what is new, and return when nothing of any router is left here.

    Requests that wait for their turn go back at once, running ones and caches that may still be pulled after `seconds`;
    a cache that is being pulled then has READ_SECONDS more. `at_once` cuts both times short.
    """
    worker.begin_drain()
    await _until(lambda: worker.idle or at_once(), seconds)
    back = worker.hand_back(keep=worker.being_read())
    await _until(lambda: not worker.being_read() or at_once(), READ_SECONDS)
    back += worker.hand_back(keep=())
    if back:
        log.warning("%d unfinished requests were handed back to their routers", back)


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    """Wait until it holds or the time is over."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not condition():
        if asyncio.get_running_loop().time() >= deadline:
            return
        await asyncio.sleep(_POLL_SECONDS)
