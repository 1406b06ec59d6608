"""A de-duplicating queue of keys: at most one task per key, several keys in parallel, and a back-off per key.

`Schedule` makes the decisions and is pure: the time is passed in. `WorkQueue` runs the tasks. A key that is added while
its task runs is due again afterwards. If a key is added with several times, the earliest counts.
"""

import asyncio
import heapq
import itertools
import logging
import random
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from v4_operator.errors import BUG, Failure
from v4_operator.metrics import ERRORS, QUEUE_LENGTH, RECONCILES

log = logging.getLogger(__name__)

K = TypeVar("K", bound=Hashable)

FIRST_DELAY, LONGEST_DELAY = 0.5, 120.0  # seconds of back-off after the first failure, and at most


class Schedule(Generic[K]):
    """The keys and the times at which they are due, in seconds of one clock."""

    def __init__(self, share: Callable[[], float] = lambda: random.uniform(0.5, 1.0)) -> None:
        self._share = share  # random share of the back-off, so that keys that failed together are not retried together
        self._due: dict[K, float] = {}
        self._running: set[K] = set()
        self._failures: dict[K, int] = {}
        self._heap: list[tuple[float, int, K]] = []  # may hold outdated entries: see _current
        self._order = itertools.count()

    def add(self, key: K, at: float) -> None:
        """Makes `key` due at `at`, unless it is due earlier."""
        if key in self._due and self._due[key] <= at:
            return
        self._due[key] = at
        if key not in self._running:
            self._push(key)

    def next_at(self) -> float | None:
        """The earliest time at which a key without a running task is due; None if there is no such key."""
        while self._heap and not self._current(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def waiting(self, now: float) -> int:
        """The number of keys that are due and have no running task."""
        return sum(at <= now and key not in self._running for key, at in self._due.items())

    def take(self, now: float) -> K | None:
        """Takes a key that is due, whose task then counts as running; None if no key is due."""
        at = self.next_at()
        if at is None or at > now:
            return None
        key = heapq.heappop(self._heap)[2]
        del self._due[key]
        self._running.add(key)
        return key

    def succeeded(self, key: K, again_at: float | None) -> None:
        """The task of `key` succeeded. The key is due again at `again_at`, or if None when it is added."""
        self._failures.pop(key, None)
        self._finish(key, again_at)

    def failed(self, key: K, now: float) -> float:
        """The task of `key` failed. Returns the seconds until the key is due again."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        delay = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** min(failures - 1, 32)) * self._share()
        self._finish(key, now + delay)
        return delay

    def _finish(self, key: K, again_at: float | None) -> None:
        self._running.remove(key)
        if again_at is not None:
            self._due[key] = min(again_at, self._due.get(key, again_at))
        if key in self._due:
            self._push(key)

    def _push(self, key: K) -> None:
        heapq.heappush(self._heap, (self._due[key], next(self._order), key))

    def _current(self, entry: tuple[float, int, K]) -> bool:
        at, _, key = entry
        return key not in self._running and self._due.get(key) == at


class WorkQueue(Generic[K]):
    """Calls `work(key)` for keys that are due. `work` returns the seconds until the key is due again, or None."""

    def __init__(self, work: Callable[[K], Awaitable[float | None]], parallel: int) -> None:
        self._work, self._parallel = work, parallel
        self._schedule: Schedule[K] = Schedule()
        self._tasks: set[asyncio.Task[float | None]] = set()
        self._wake = asyncio.Event()

    def add(self, key: K, delay: float = 0.0) -> None:
        """Makes `key` due in `delay` seconds or earlier."""
        self._schedule.add(key, asyncio.get_running_loop().time() + delay)
        self._wake.set()

    async def run(self) -> None:
        """Runs the tasks until cancelled, which cancels the running tasks too."""
        clock = asyncio.get_running_loop().time
        QUEUE_LENGTH.set_function(lambda: self._schedule.waiting(clock()))
        try:
            while True:
                self._wake.clear()
                while len(self._tasks) < self._parallel and (key := self._schedule.take(clock())) is not None:
                    self._start(key)
                free = len(self._tasks) < self._parallel
                await self._sleep(self._schedule.next_at() if free else None)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _sleep(self, until: float | None) -> None:
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            pass

    def _start(self, key: K) -> None:
        task = asyncio.ensure_future(self._work(key))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(key, done))

    def _ended(self, key: K, task: "asyncio.Task[float | None]") -> None:
        self._tasks.discard(task)
        self._wake.set()
        if task.cancelled():
            return
        now = asyncio.get_running_loop().time()
        error = task.exception()
        if error is None:
            RECONCILES.labels("ok").inc()
            again = task.result()
            self._schedule.succeeded(key, None if again is None else now + again)
            return
        delay = self._schedule.failed(key, now)
        if isinstance(error, Failure):
            RECONCILES.labels("error").inc()
            ERRORS.labels(error.kind).inc()
            log.warning("%s: %s; next attempt in %.1f s", key, error, delay)
        else:
            # A bug that one key triggers must not stop the work on all other keys.
            RECONCILES.labels("bug").inc()
            ERRORS.labels(BUG).inc()
            log.error("%s: a bug in the operator; next attempt in %.1f s", key, delay, exc_info=error)
