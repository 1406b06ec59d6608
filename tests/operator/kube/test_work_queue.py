"""No key is lost, no key has two tasks at once, and the back-off after failures grows up to a limit."""

import asyncio
import logging
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.operator.conftest import until
from v4_operator.errors import OperatorError
from v4_operator.kube import work_queue
from v4_operator.kube.work_queue import FIRST_DELAY, LONGEST_DELAY, Schedule, WorkQueue
from v4_operator.metrics import REGISTRY

keys = st.sampled_from("abcde")
delays = st.floats(0, 300)


class Machine(RuleBasedStateMachine):
    """A schedule and a simple model of it: the time at which each key is due, and the keys with a running task."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule: Schedule[str] = Schedule(share=lambda: 1.0)
        self.now = 0.0
        self.due: dict[str, float] = {}
        self.running: list[str] = []
        self.failures: Counter[str] = Counter()

    @rule(key=keys, delay=delays)
    def add(self, key: str, delay: float) -> None:
        self.schedule.add(key, self.now + delay)
        self.due[key] = min(self.due.get(key, self.now + delay), self.now + delay)

    @rule(delay=delays)
    def wait(self, delay: float) -> None:
        self.now += delay

    @rule()
    def take(self) -> None:
        ready = {key: at for key, at in self.due.items() if at <= self.now and key not in self.running}
        key = self.schedule.take(self.now)
        if key is None:
            assert not ready
            return
        assert key not in self.running
        assert ready[key] == min(ready.values())
        del self.due[key]
        self.running.append(key)

    @precondition(lambda self: self.running)
    @rule(again=st.none() | delays, index=st.integers(0, 4))
    def succeed(self, again: float | None, index: int) -> None:
        key = self.running.pop(index % len(self.running))
        at = None if again is None else self.now + again
        self.schedule.succeeded(key, at)
        if at is not None:
            self.due[key] = min(self.due.get(key, at), at)
        del self.failures[key]

    @precondition(lambda self: self.running)
    @rule(index=st.integers(0, 4))
    def fail(self, index: int) -> None:
        key = self.running.pop(index % len(self.running))
        delay = self.schedule.failed(key, self.now)
        self.failures[key] += 1
        assert delay == min(LONGEST_DELAY, FIRST_DELAY * 2 ** (self.failures[key] - 1))
        self.due[key] = min(self.due.get(key, self.now + delay), self.now + delay)

    @invariant()
    def knows_what_is_next(self) -> None:
        waiting = [at for key, at in self.due.items() if key not in self.running]
        assert self.schedule.next_at() == (min(waiting) if waiting else None)
        assert self.schedule.waiting(self.now) == sum(at <= self.now for at in waiting)

    def teardown(self) -> None:
        """Every key that was added and not taken is taken exactly once."""
        for key in self.running:
            self.schedule.succeeded(key, None)
        self.now += 10_000
        left = Counter(iter(lambda: self.schedule.take(self.now), None))
        assert left == Counter(self.due.keys())


TestSchedule = Machine.TestCase
TestSchedule.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(st.integers(1, 200))
def test_a_back_off_is_spread_and_bounded(failures: int) -> None:
    schedule: Schedule[str] = Schedule()
    for _ in range(failures):
        schedule.add("a", 0.0)
        assert schedule.take(0.0) == "a"
        delay = schedule.failed("a", 0.0)
    full = min(LONGEST_DELAY, FIRST_DELAY * 2.0 ** (failures - 1))
    assert full / 2 <= delay <= full


class Work:
    """A task that runs until the test releases it, and a record of its runs."""

    def __init__(self, *errors: BaseException) -> None:
        self.running: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.most = 0
        self.go = asyncio.Event()
        self.errors = list(errors)
        self.times: list[float] = []

    async def __call__(self, key: str) -> float | None:
        self.running[key] += 1
        assert self.running[key] == 1, f"{key} is worked on twice at once"
        self.most = max(self.most, self.running.total())
        self.times.append(asyncio.get_running_loop().time())
        try:
            await self.go.wait()
            if self.errors:
                raise self.errors.pop(0)
        finally:
            self.running[key] -= 1
        self.done[key] += 1
        return None

    async def until(self, **done: int) -> None:
        await until(lambda: all(self.done[key] >= count for key, count in done.items()))


async def running(queue: WorkQueue[str]) -> "asyncio.Task[None]":
    task = asyncio.create_task(queue.run())
    await asyncio.sleep(0)
    return task


async def stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_several_keys_run_in_parallel_and_each_key_once() -> None:
    work = Work()
    queue: WorkQueue[str] = WorkQueue(work, parallel=2)
    task = await running(queue)
    for key in "abcabc":
        queue.add(key)
    await until(lambda: work.running.total() == 2)
    queue.add("a")
    work.go.set()
    await work.until(a=2, b=1, c=1)
    assert work.most == 2
    assert work.done == {"a": 2, "b": 1, "c": 1}
    await stop(task)


async def test_a_key_is_due_again_when_its_task_says_so() -> None:
    left = [0.01, 0.01, None]
    seen: list[str] = []

    async def work(key: str) -> float | None:
        seen.append(key)
        return left.pop(0)

    queue: WorkQueue[str] = WorkQueue(work, parallel=1)
    task = await running(queue)
    queue.add("a")
    await until(lambda: not left)
    assert seen == ["a"] * 3
    await stop(task)


async def test_a_failed_key_backs_off_and_does_not_delay_others(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    work = Work(OperatorError("no such namespace"))
    work.go.set()
    queue: WorkQueue[str] = WorkQueue(work, parallel=1)
    task = await running(queue)
    queue.add("a")
    queue.add("b")
    await work.until(a=1, b=1)
    assert work.times[2] - work.times[0] >= FIRST_DELAY / 2
    assert "a: no such namespace; next attempt in" in caplog.text
    assert "Traceback" not in caplog.text
    await stop(task)


async def test_a_bug_is_logged_with_a_traceback_and_stops_nothing(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(KeyError("spec"))
    work.go.set()
    queue: WorkQueue[str] = WorkQueue(work, parallel=1)
    task = await running(queue)
    queue.add("a")
    queue.add("b")
    await work.until(a=1, b=1)
    assert "Traceback" in caplog.text
    await stop(task)


async def test_closing_cancels_running_tasks() -> None:
    work = Work()
    queue: WorkQueue[str] = WorkQueue(work, parallel=2)
    task = await running(queue)
    queue.add("a")
    await until(work.running.total)
    await stop(task)
    assert work.running.total() == 0
    assert not work.done


async def test_the_queue_and_its_failures_are_counted(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.CRITICAL)
    monkeypatch.setattr(work_queue, "FIRST_DELAY", 60.0)  # no key is due again before the end of the test
    before = {kind: counted(kind) for kind in ("taken", "bug")}
    taken = OperatorError("n/d: taken")
    taken.kind = "taken"
    work = Work(taken, KeyError("x"))
    queue = WorkQueue(work, parallel=1)
    task = await running(queue)
    for key in "abc":
        queue.add(key)
    queue.add("later", 60.0)
    await until(lambda: work.running["a"])
    assert REGISTRY.get_sample_value("v4serve_operator_queue_length") == 2
    work.go.set()
    await work.until(c=1)
    assert REGISTRY.get_sample_value("v4serve_operator_queue_length") == 0
    assert {kind: counted(kind) - count for kind, count in before.items()} == {"taken": 1, "bug": 1}
    await stop(task)


def counted(kind: str) -> float:
    return REGISTRY.get_sample_value("v4serve_operator_errors_total", {"kind": kind}) or 0.0
