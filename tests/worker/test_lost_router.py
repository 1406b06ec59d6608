"""A router whose network vanishes without a word: keepalive finds out, and what it held is free."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.engine.harness import make_engine, prompt
from tests.worker.cluster import Node, Stream, start, until
from v4_core.v1 import worker_pb2 as pb
from v4_worker import server as server_module


class Network:
    """Carries connections to a worker until it swallows everything; it never ends one by itself."""

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._up = True
        self._tasks: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        """host:port to connect to."""
        server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        try:
            yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    def vanish(self) -> None:
        """From now on nothing arrives on either side, and neither is told."""
        self._up = False

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._upstream)
        for source, target in ((reader, far_writer), (far_reader, writer)):
            task = asyncio.create_task(self._copy(source, target))
            self._tasks.add(task)

    async def _copy(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError):
                while data := await source.read(65536):
                    if self._up:
                        target.write(data)
                        await target.drain()
        finally:
            target.close()


def test_the_bound_that_the_settings_promise() -> None:
    options = dict(server_module._SERVER_OPTIONS)
    assert options["grpc.keepalive_time_ms"] + options["grpc.http2.ping_timeout_ms"] == 15_000


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenth of the time."""
    options = dict(server_module._SERVER_OPTIONS) | {
        "grpc.keepalive_time_ms": 500,
        "grpc.http2.ping_timeout_ms": 1_000,
    }
    monkeypatch.setattr(server_module, "_SERVER_OPTIONS", tuple(options.items()))


@pytest.mark.usefixtures("quick")
async def test_what_it_held_is_free_within_the_keepalive_bound() -> None:
    node = await Node.start("prefill", make_engine(max_sequences=2), lease_seconds=600.0)
    network = Network(int(node.address.rpartition(":")[2]))
    async with network.running() as address:
        router = Stream(address)
        router.send(start(prompt(300), pb.PREFILL, "parked"))
        await router.event("tokens", "parked")
        router.send(start(prompt(40), pb.WHOLE, "streams", max_tokens=8000))
        await router.event("tokens", "streams")
        router.send(start(prompt(50), pb.PREFILL, "waits"))
        await until(lambda: node.load.waiting == 1)
        network.vanish()
        vanished = time.monotonic()
        await until(lambda: node.worker.idle)
        assert time.monotonic() - vanished < 10 * 1.5
        await node.empty()
        node.send(start(prompt(40), pb.WHOLE))
        await until(lambda: len(node.tokens()) == 12)
        await router.leave()
    await node.stop()


@pytest.mark.usefixtures("quick")
async def test_a_parked_cache_without_any_traffic_is_found_too() -> None:
    """Pings go on over a stream on which neither side has anything to say."""
    node = await Node.start("prefill", lease_seconds=600.0)
    network = Network(int(node.address.rpartition(":")[2]))
    async with network.running() as address:
        router = Stream(address)
        router.send(start(prompt(300), pb.PREFILL))
        await router.event("tokens")
        await asyncio.wait([router._reader], timeout=3.5)  # several pings
        assert node.worker.leases.held == 1
        network.vanish()
        await until(lambda: node.worker.idle)
        await router.leave()
    await node.stop()
