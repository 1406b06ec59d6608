"""Runs the engine on its own thread. The event loop sends calls to it and receives reports from it.

Calls run between steps, in order. An exception inside a step is fatal, because the state of the engine is then unknown.
"""

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from v4_core.v1 import worker_pb2 as pb
from v4_engine.engine import Engine
from v4_engine.events import Event

T = TypeVar("T")
Kind = Literal["prefill", "decode", "mixed"]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step computed and how long it took."""

    prefill_tokens: int  # prompt tokens
    decode_tokens: int  # one per sequence whose prompt is complete
    seconds: float

    @property
    def kind(self) -> Kind:
        """Whether the step computed prompt tokens, output tokens, or both."""
        if not self.decode_tokens:
            return "prefill"
        return "mixed" if self.prefill_tokens else "decode"


@dataclass(frozen=True, slots=True)
class Report:
    """The events since the last report, and the state of the engine after them."""

    events: list[Event]
    load: pb.Load
    arriving: int = 0  # sequences whose cache is being transferred
    parked: int = 0  # sequences whose cache is kept for a decode worker
    step: StepResult | None = None  # the last step, if it computed anything
    time: float = 0.0  # time.monotonic() of the report


OnReport = Callable[[Report], None]


class EngineThread:
    """Steps an engine while it has work. All public methods must be called on the event loop's thread."""

    def __init__(self, engine: Engine, on_report: OnReport, on_fatal: Callable[[BaseException], None]) -> None:
        """Both callbacks run on the event loop.

        `on_report` is called when requests are admitted, after each step, and after calls while there is no step.
        `on_fatal` is called after the engine failed.
        """
        self._engine = engine
        self._on_report, self._on_fatal = on_report, on_fatal
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def call(self, function: Callable[[Engine], T]) -> "asyncio.Future[T]":
        """Run `function(engine)` between two steps. The future gets its result or its exception."""
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
        """Run `function(engine)` between two steps. An exception is fatal, because no caller could handle it."""
        self._calls.put(lambda: _void(function(self._engine)))

    async def stop(self) -> None:
        """Stop the thread after the present step, and wait for its end."""
        self._calls.put(None)
        await asyncio.to_thread(self._thread.join)

    def _run(self) -> None:
        try:
            while self._serve_calls():
                if self._engine.busy:
                    self._step()
        except BaseException as error:
            self._post(self._on_fatal, error)

    def _step(self) -> None:
        began = time.monotonic()
        schedule, admitted = self._engine.schedule()
        if admitted:  # routers learn of an admission before the step, not after it
            self._report(admitted)
        events = self._engine.compute(schedule)
        seconds = time.monotonic() - began
        self._report(
            events, StepResult(schedule.prefill_tokens, schedule.decode_tokens, seconds) if schedule.work else None
        )

    def _report(self, events: list[Event], step: StepResult | None = None) -> None:
        self._post(self._on_report, report_of(self._engine, events, step))

    def _serve_calls(self) -> bool:
        """Run pending calls; wait for a call while there is nothing to step. Returns False to stop the thread."""
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
                self._report([])
                served = False

    def _post(self, function: Callable[..., object], *args: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(function, *args)
        except RuntimeError:  # the event loop is closed, so nobody receives reports
            self._calls.put(None)


def report_of(engine: Engine, events: list[Event], step: StepResult | None = None) -> Report:
    """A report of the engine's present state."""
    scheduler = engine.scheduler
    return Report(events, load_of(engine), len(scheduler.arriving), len(scheduler.parked), step, time.monotonic())


def load_of(engine: Engine) -> pb.Load:
    """The engine's load. The worker adds `leases` and `draining`."""
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
        tails_total=scheduler.config.max_sequences,
        tails_used=scheduler.config.max_sequences - scheduler.allocator.tails_free,
    )


def _void(_: object) -> None:
    """Discard the result of a call."""


def _resolve(future: "asyncio.Future[T]", result: T) -> None:
    if not future.done():
        future.set_result(result)


def _fail(future: "asyncio.Future[Any]", error: Exception) -> None:
    if not future.done():
        future.set_exception(error)
