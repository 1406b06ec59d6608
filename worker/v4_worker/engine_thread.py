"""The engine's one thread, and how the event loop talks to it: calls in, steps' events out.

Calls run between steps, in order. What the engine raises inside a step is fatal: a worker that cannot be right stops
rather than answers.
"""

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from v4_core.v1 import worker_pb2 as pb
from v4_engine.engine import Engine, Event

T = TypeVar("T")
OnStep = Callable[[list[Event], pb.Load], None]


class EngineThread:
    """Steps an engine while it has work. All public methods belong to the event loop's thread."""

    def __init__(self, engine: Engine, on_step: OnStep, on_fatal: Callable[[BaseException], None]) -> None:
        """`on_step` and `on_fatal` are called on the event loop: after each step, and after the engine failed."""
        self._engine = engine
        self._on_step, self._on_fatal = on_step, on_fatal
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[Engine], T]) -> "asyncio.Future[T]":
        """Run `function(engine)` between two steps; its result or error is the future's."""
        future: asyncio.Future[T] = self._loop.create_future()

        def run() -> None:
            try:
                result = function(self._engine)
            except Exception as error:
                self._post(_fail, future, error)
            else:
                self._post(_resolve, future, result)

        self._calls.put(run)
        return future

    def post(self, function: Callable[[Engine], object]) -> None:
        """Run `function(engine)` between two steps; an error is fatal, since nobody waits for it."""
        self._calls.put(lambda: _void(function(self._engine)))

    async def stop(self) -> None:
        """Stop behind the current step and wait for it."""
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            while self._serve_calls():
                if self._engine.busy:
                    events = self._engine.step()
                    self._post(self._on_step, events, load_of(self._engine))
        except BaseException as error:
            self._post(self._on_fatal, error)

    def _serve_calls(self) -> bool:
        """Run what was asked; wait for a call while there is nothing to step. False = stop."""
        served = False
        while True:
            try:
                call = self._calls.get(block=not self._engine.busy and not served)
            except queue.Empty:
                return True
            if call is None:
                return False
            call()
            served = True
            if not self._engine.busy and self._calls.empty():
                self._post(self._on_step, [], load_of(self._engine))
                served = False

    def _post(self, function: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the loop is closed: nobody listens any more
            self._calls.put(None)


def load_of(engine: Engine) -> pb.Load:
    """What the engine holds and has to do. Leases and transfers are the worker's to add."""
    pool, scheduler = engine.pool, engine.scheduler
    queued = sum(s.remaining for s in (*scheduler.waiting, *scheduler.running) if s.remaining > 1)
    return pb.Load(
        running=len(scheduler.running) + len(scheduler.arriving),
        waiting=len(scheduler.waiting),
        queued_tokens=queued,
        slots_total=pool.total,
        slots_free=pool.free,
        slots_evictable=pool.tree.evictable,
        blocks_used=pool.total - pool.available,
        checkpoint_slots_used=pool.tree.checkpoint_slots,
        tails_total=engine.limits.max_sequences,
        tails_used=engine.limits.max_sequences - scheduler.tails_free,
        preemptions=scheduler.preemptions,
    )


def _void(_: object) -> None:
    """A call's result that nobody wants."""


def _resolve(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
