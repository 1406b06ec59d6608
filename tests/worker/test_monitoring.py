"""The monitoring port: what it answers in each condition, and in a process that loads, serves, drains and fails."""

import asyncio
import os
import re
import signal
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest

from tests.engine.harness import make_engine, prompt
from tests.worker.cluster import KINDS, Stream, start, until
from v4_core.errors import ConfigError
from v4_core.held_ports import held_for, held_ports
from v4_core.v1 import worker_pb2 as pb
from v4_engine.loading import Loaded
from v4_worker import process as process_module
from v4_worker.condition import STATES
from v4_worker.config import WorkerConfig
from v4_worker.errors import WorkerError
from v4_worker.metrics import WorkerMetrics
from v4_worker.monitoring import monitoring


async def ask(address: str, path: str) -> tuple[int, str]:
    """Status and body."""
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}{path}") as response:
        return response.status, await response.text()


async def test_each_condition_has_its_answers() -> None:
    metrics = WorkerMetrics()
    condition = metrics.condition
    async with monitoring(metrics, "127.0.0.1", 0) as address:
        assert await ask(address, "/health") == (200, "ok\n")
        assert await ask(address, "/ready") == (503, "the model is being loaded\n")
        condition.become("ready")
        assert await ask(address, "/ready") == (200, "ok\n")
        condition.become("draining")
        assert await ask(address, "/health") == (200, "ok\n")
        assert await ask(address, "/ready") == (503, "this worker is draining: it will stop soon\n")
        condition.become("failed")
        condition.become("draining")
        assert await ask(address, "/health") == await ask(address, "/ready") == (503, "the engine failed\n")


async def test_metrics_are_those_of_the_process_and_name_its_state() -> None:
    metrics = WorkerMetrics()
    async with monitoring(metrics, "127.0.0.1", 0) as address:
        status, text = await ask(address, "/metrics")
        assert status == 200
        assert "process_resident_memory_bytes" in text
        assert re.search(r'^v4serve_process_info{version="\d', text, re.MULTILINE)
        assert "_created" not in text
        assert await states(address) == ["loading"]
        for state in STATES:
            metrics.condition.become(state)
            assert await states(address) == [state]


async def states(address: str) -> list[str]:
    """Those that the metrics say the worker is in: exactly one, if all is well."""
    _, text = await ask(address, "/metrics")
    found = dict(re.findall(r'^v4serve_worker_state{state="(\w+)"} ([01])\.0$', text, re.MULTILINE))
    assert list(found) == list(STATES)
    return [state for state, value in found.items() if value == "1"]


async def test_a_taken_port_is_a_clear_error() -> None:
    async with monitoring(WorkerMetrics(), "127.0.0.1", 0) as address:
        port = int(address.rpartition(":")[2])
        with pytest.raises(ConfigError, match="--monitoring-port"):
            async with monitoring(WorkerMetrics(), "127.0.0.1", port):
                pass


class Process:
    """A worker's process in this one: its load ends when told to, signals are this process's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ports: Sequence[int]) -> None:
        self.loading = threading.Event()
        self.engine = make_engine()

        def load(*_: object) -> Loaded:
            assert self.loading.wait(60)
            return Loaded(self.engine, "same")

        monkeypatch.setattr(process_module, "load_engine", load)
        self.port, monitoring_port = ports
        self.address = f"127.0.0.1:{monitoring_port}"
        self.config = WorkerConfig(Path("unused"), port=self.port, monitoring_port=monitoring_port, drain_seconds=60.0)

    @asynccontextmanager
    async def running(self) -> AsyncIterator["asyncio.Task[None]"]:
        """Started; ended by a second signal if it has not ended by itself."""
        task = asyncio.create_task(process_module._Process(self.config, "decode", KINDS["decode"]).run())
        try:
            await self.until("/health", 200)
            yield task
        finally:
            self.loading.set()
            while not task.done():
                os.kill(os.getpid(), signal.SIGTERM)
                await asyncio.wait([task], timeout=1.0)
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().remove_signal_handler(number)

    async def until(self, path: str, status: int) -> str:
        """The answer once it has this status."""
        async with asyncio.timeout(60):
            while True:
                try:
                    found, text = await ask(self.address, path)
                except aiohttp.ClientConnectionError:
                    found = 0
                if found == status:
                    return text
                await asyncio.sleep(0.01)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    """Whose ports are held for it."""
    with held_ports("127.0.0.1", 2) as ports:
        for name, value in held_for(ports).items():
            monkeypatch.setenv(name, value)
        yield Process(monkeypatch, ports)


async def test_it_answers_while_the_model_is_loaded_and_while_it_drains(process: Process) -> None:
    async with process.running() as task:
        assert "loaded" in await process.until("/ready", 503)
        assert await states(process.address) == ["loading"]
        process.loading.set()
        await process.until("/ready", 200)
        assert await states(process.address) == ["ready"]
        assert "v4serve_prefill_tokens_total 0.0\n" in (await ask(process.address, "/metrics"))[1], "but for a warm-up"
        stream = Stream(f"127.0.0.1:{process.port}")
        stream.send(start(prompt(40), pb.WHOLE, max_tokens=5000))
        await stream.event("tokens")
        os.kill(os.getpid(), signal.SIGTERM)
        assert "draining" in await process.until("/ready", 503)
        assert (await ask(process.address, "/health"))[0] == 200
        assert await states(process.address) == ["draining"]
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(task, 60)
        await until(lambda: any(e.tokens.finish == pb.MIGRATE for e in stream.events["r", 0]))
        await stream.leave()


async def test_told_to_stop_while_it_loads_it_ends_without_serving(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        async with process.running() as task:
            os.kill(os.getpid(), signal.SIGTERM)
            process.loading.set()
            await asyncio.wait_for(task, 60)
    assert "worker ready" not in caplog.text


async def test_an_engine_that_fails_ends_it(process: Process, monkeypatch: pytest.MonkeyPatch) -> None:
    async with process.running() as task:
        process.loading.set()
        await process.until("/ready", 200)
        monkeypatch.setattr(process.engine, "compute", lambda schedule: 1 / 0)
        stream = Stream(f"127.0.0.1:{process.port}")
        stream.send(start(prompt(40), pb.WHOLE))
        with pytest.raises(WorkerError, match="engine failed"):
            await asyncio.wait_for(task, 60)
        await stream.leave()
