"""The engine's thread: calls run between steps and in order; an error inside a step is fatal and is told."""

import asyncio
from functools import partial

import pytest

from tests.engine.harness import make_engine, prompt, request
from tests.worker.cluster import until
from v4_core.v1 import worker_pb2 as pb
from v4_engine.engine import Engine, Event, Token
from v4_engine.errors import IntegrityError
from v4_worker.engine_thread import EngineThread


class Watched:
    """An engine thread and what it said."""

    def __init__(self, engine: Engine) -> None:
        self.events: list[Event] = []
        self.loads: list[pb.Load] = []
        self.fatal: list[BaseException] = []
        self.thread = EngineThread(engine, self._step, self.fatal.append)

    def _step(self, events: list[Event], load: pb.Load) -> None:
        self.events += events
        self.loads.append(load)


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
