"""The engine's thread: calls run between steps and in order; an error inside a step is fatal and is told."""

import asyncio
import threading
from functools import partial

import pytest

from tests.engine.harness import make_engine, prompt, request
from tests.worker.cluster import until
from v4_core.v1 import worker_pb2 as pb
from v4_engine.engine import Engine
from v4_engine.errors import IntegrityError
from v4_engine.events import Admitted, Event, Token
from v4_engine.schedule import Schedule
from v4_worker.engine_thread import EngineThread, Report, StepResult


class Watched:
    """An engine thread and what it said."""

    def __init__(self, engine: Engine) -> None:
        self.events: list[Event] = []
        self.reports: list[Report] = []
        self.fatal: list[BaseException] = []
        self.thread = EngineThread(engine, self._report, self.fatal.append)

    @property
    def loads(self) -> list[pb.Load]:
        """Of all reports."""
        return [report.load for report in self.reports]

    def _report(self, report: Report) -> None:
        self.events += report.events
        self.reports.append(report)


async def test_calls_run_in_order_and_results_come_back() -> None:
    watched = Watched(make_engine())
    order: list[int] = []

    def note(number: int, _: Engine) -> int:
        order.append(number)
        return number

    futures = [watched.thread.call(partial(note, i)) for i in range(20)]
    assert await asyncio.gather(*futures) == list(range(20))
    assert order == list(range(20))
    await watched.thread.stop()


async def test_an_error_of_a_call_is_the_callers() -> None:
    watched = Watched(make_engine())

    def fail(_: Engine) -> None:
        raise ValueError("for the caller")

    with pytest.raises(ValueError, match="for the caller"):
        await watched.thread.call(fail)
    assert not watched.fatal
    await watched.thread.stop()


async def test_steps_run_while_there_is_work_and_the_load_follows() -> None:
    watched = Watched(make_engine())
    assert await watched.thread.call(lambda engine: engine.submit(request(prompt(300), max_tokens=20)))
    await until(lambda: sum(isinstance(e, Token) for e in watched.events) == 20)
    await until(lambda: watched.loads[-1].running == 0)
    assert max(load.tails_used for load in watched.loads) == 1
    assert watched.loads[-1].tails_used == watched.loads[-1].blocks_used == 0
    await watched.thread.stop()


async def test_an_admission_is_told_before_its_step_is_computed() -> None:
    engine = make_engine()
    watched = Watched(engine)
    compute = engine.compute
    told_first: list[bool] = []

    def late(schedule: Schedule) -> list[Event]:
        told_first.append(not schedule.admitted or reached.wait(60))
        return compute(schedule)

    reached = threading.Event()
    engine.compute = late  # type: ignore[method-assign]
    await watched.thread.call(lambda engine: engine.submit(request(prompt(40), max_tokens=3)))
    await until(lambda: watched.events)
    assert [type(event) for event in watched.events] == [Admitted]
    assert watched.reports[-1].step is None
    assert watched.loads[-1].tails_used == 1
    reached.set()
    await until(lambda: watched.loads[-1].running == 0)
    steps = [report.step for report in watched.reports if report.step is not None]
    assert [(s.kind, s.prefill_tokens, s.decode_tokens) for s in steps] == [("prefill", 40, 0), *2 * [("decode", 0, 1)]]
    assert all(step.seconds > 0 for step in steps)
    times = [report.time for report in watched.reports]
    assert times == sorted(times)
    assert all(told_first)
    await watched.thread.stop()


def test_the_kind_of_a_step_is_what_it_computes() -> None:
    assert [StepResult(*tokens, 0.0).kind for tokens in ((5, 0), (0, 5), (5, 1))] == ["prefill", "decode", "mixed"]


async def test_an_engine_that_fails_in_a_step_is_fatal() -> None:
    engine = make_engine()
    watched = Watched(engine)

    def break_it(broken: Engine) -> None:
        broken.scheduler.schedule = None  # type: ignore[method-assign,assignment]
        broken.submit(request(prompt(10)))

    await watched.thread.call(break_it)
    await until(lambda: watched.fatal)
    assert isinstance(watched.fatal[0], TypeError)
    await watched.thread.stop()


async def test_an_error_that_nobody_waits_for_is_fatal() -> None:
    watched = Watched(make_engine())
    watched.thread.post(lambda engine: engine.adopt(("nobody", 0), {}))
    await until(lambda: watched.fatal)
    assert isinstance(watched.fatal[0], IntegrityError)
    await watched.thread.stop()
