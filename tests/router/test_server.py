"""The router's process: the effect of signals, and of wrong settings."""

import asyncio
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.router.conftest import until
from tests.router.fake_api_server import FakeApiServer, api_server
from tests.router.fake_worker import Caches, FakeWorker, expected
from v4_core.held_ports import held_for, held_ports

PROGRAM = """
import json, sys
from v4_core.settings import load
from v4_router import server
from v4_router.config import RouterConfig
model, leaving, settings = sys.argv[1:]
server._LEAVING_SECONDS = float(leaving)
try:
    server.run(load(RouterConfig, None, {"model_path": model, "served_name": "tiny", **json.loads(settings)}))
except Exception as error:
    sys.exit(f"{type(error).__name__}: {error}")
"""


@dataclass
class Running:
    """A router process with a pair of fake workers."""

    process: asyncio.subprocess.Process
    client: httpx.AsyncClient
    monitoring: httpx.AsyncClient
    prefill: FakeWorker
    decode: FakeWorker


@asynccontextmanager
async def running(model_path: Path, *, leaving: float = 0.0, **settings: Any) -> AsyncIterator[Running]:
    """Yields once the router is ready."""
    with held_ports("127.0.0.1", 2) as ports:
        async with _running(model_path, leaving, ports, settings) as one:
            yield one


@asynccontextmanager
async def _running(
    model_path: Path, leaving: float, ports: Sequence[int], settings: Mapping[str, Any]
) -> AsyncIterator[Running]:
    caches = Caches()
    workers = [await FakeWorker(role, caches).start() for role in ("prefill", "decode")]
    port, monitoring_port = ports
    settings = {
        "port": port, "monitoring_port": monitoring_port,
        "prefill": [workers[0].address], "decode": [workers[1].address],
    } | dict(settings)  # fmt: skip
    command = [sys.executable, "-c", PROGRAM, str(model_path), str(leaving), json.dumps(settings)]
    process = await asyncio.create_subprocess_exec(*command, env={**os.environ, **held_for(ports)})
    try:
        async with (
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{monitoring_port}", trust_env=False) as monitoring,
        ):
            await _until_ready(client)
            yield Running(process, client, monitoring, *workers)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        for worker in workers:
            await worker.kill()


async def _until_ready(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            if (await client.get("/ready")).status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.02)
    raise AssertionError("the router did not become ready")


class Stream:
    """A stream that the test reads."""

    def __init__(self, r: Running, tokens: int) -> None:
        self.lines: list[str] = []
        self._client = r.client
        self._body = {"prompt": [10], "max_tokens": tokens, "stream": True, "return_token_ids": True}
        self.task = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async with self._client.stream("POST", "/v1/completions", json=self._body) as response:
            async for line in response.aiter_lines():
                if line:
                    self.lines.append(line.removeprefix("data: "))

    async def begun(self) -> None:
        """Waits until a few tokens have arrived."""
        await until(lambda: len(self.lines) > 3, "it streams")

    @property
    def ids(self) -> list[int]:
        """Returns the token ids of all events except the last one."""
        return [i for line in self.lines[:-1] for i in json.loads(line)["choices"][0]["token_ids"]]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_within_seconds_and_frees_the_workers(model_path: Path, number: signal.Signals) -> None:
    async with running(model_path) as r:
        r.decode.step_seconds = 0.01
        stream = Stream(r, 100_000)
        await stream.begun()
        before = time.monotonic()
        r.process.send_signal(number)
        assert await asyncio.wait_for(r.process.wait(), 8) == 0
        assert time.monotonic() - before < 6
        await stream.task
        assert json.loads(stream.lines[-1])["error"]["code"] == "no_worker"
        await until(lambda: r.prefill.idle and r.decode.idle, "workers idle")


async def test_streams_have_their_time_to_finish(model_path: Path) -> None:
    async with running(model_path, drain_seconds=60.0) as r:
        r.decode.step_seconds = 0.02
        stream = Stream(r, 150)
        await stream.begun()
        r.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(r.process.wait(), 30) == 0
        await stream.task
        assert stream.lines[-1] == "[DONE]"
        assert stream.ids == expected([10], 150)


async def test_a_second_signal_ends_it_at_once(model_path: Path) -> None:
    async with running(model_path, drain_seconds=600.0) as r:
        r.decode.step_seconds = 0.02
        stream = Stream(r, 100_000)
        await stream.begun()
        r.process.send_signal(signal.SIGTERM)
        await _until_refused(r.client)
        r.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(r.process.wait(), 10) == 0
        await stream.task
        assert json.loads(stream.lines[-1])["error"]["code"] == "no_worker"


async def _until_refused(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            await client.get("/health")
        except httpx.TransportError:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it still listens")


async def test_in_a_cluster_it_takes_requests_until_others_have_heard(
    model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = FakeApiServer()
    caches = Caches()
    workers = [await FakeWorker(role, caches).start() for role in ("prefill", "decode")]
    for worker in workers:
        api.set(worker.role, worker.address, role=worker.role)
    found: dict[str, Any] = {"prefill": [], "decode": [], "namespace": "ns", "deployment": "demo"}
    async with (
        api_server(api, tmp_path, monkeypatch),
        running(model_path, leaving=1.5, drain_seconds=30.0, **found) as r,
    ):
        workers[1].step_seconds = 0.01
        stream = Stream(r, 200)
        await stream.begun()
        r.process.send_signal(signal.SIGTERM)
        await until_status(r.client, "/ready", 503)
        assert (await r.monitoring.get("/ready")).status_code == 503
        assert (await r.monitoring.get("/health")).status_code == 200
        late = Stream(r, 100)
        await late.begun()
        assert await asyncio.wait_for(r.process.wait(), 30) == 0
        for one, tokens in ((stream, 200), (late, 100)):
            await one.task
            assert one.lines[-1] == "[DONE]"
            assert one.ids == expected([10], tokens)
    for worker in workers:
        await worker.kill()


async def until_status(client: httpx.AsyncClient, path: str, status: int) -> None:
    deadline = time.monotonic() + 5
    while (await client.get(path)).status_code != status:
        assert time.monotonic() < deadline


async def test_ports_and_keys(model_path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.yaml"
    keys.write_text("sk-1: alice\n")
    async with running(model_path, api_keys=str(keys), host="127.0.0.1") as r:
        assert (await r.client.get("/metrics")).status_code == 401
        assert (await r.monitoring.get("/metrics")).status_code == 200
        assert (await r.monitoring.get("/fleet")).json()["router"]["ready"]
        headers = {"authorization": "Bearer sk-1"}
        body = {"prompt": [10], "max_tokens": 3}
        assert (await r.client.post("/v1/completions", json=body, headers=headers)).status_code == 200


@pytest.mark.parametrize("flag", ["port", "monitoring_port"])
async def test_a_port_that_is_taken(model_path: Path, flag: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = {"decode": ["127.0.0.1:1"], "port": 0} | {flag: taken.getsockname()[1]}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PROGRAM, str(model_path), "0", json.dumps(settings), stderr=asyncio.subprocess.PIPE
        )
        _, told = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    assert f"choose another --{flag.replace('_', '-')}".encode() in told
