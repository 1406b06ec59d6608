"""Watching pods while the API server ends watches, forgets versions or is down; and a router that uses the watch."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest

from tests.router.conftest import MODEL, Deploy, until
from tests.router.fake_api_server import FakeApiServer, api_server
from tests.router.fake_worker import Caches, FakeWorker
from v4_core.errors import ConfigError
from v4_router.endpoints import WorkerEndpoint
from v4_router.pods import PodWatch
from v4_router.status import fleet_status


class Known:
    """The endpoints of the last report, by uid of their pods."""

    def __init__(self) -> None:
        self.endpoints: dict[str, WorkerEndpoint] = {}

    def on_change(self, endpoints: Iterable[WorkerEndpoint]) -> None:
        self.endpoints = {e.uid: e for e in endpoints}

    @property
    def uids(self) -> set[str]:
        return set(self.endpoints)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_kube.watch._FIRST_PAUSE", 0.01)
    monkeypatch.setattr("v4_kube.watch._LONGEST_PAUSE", 0.05)


@pytest.fixture
async def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeApiServer]:
    """An API server with one pod."""
    made = FakeApiServer()
    made.set("a", "127.0.0.1:1")
    async with api_server(made, tmp_path, monkeypatch):
        yield made
    assert not made.bad


@pytest.fixture
async def known(server: FakeApiServer) -> AsyncIterator[Known]:
    """Yields the endpoints of a running watch, which are kept current."""
    result = Known()
    watch = await PodWatch.connect("ns", "demo", result.on_change)
    running = asyncio.create_task(watch.run())
    await until(lambda: bool(server.watches), "the watch began")
    assert result.uids == {"a"}
    yield result
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_changes_are_reported(server: FakeApiServer, known: Known) -> None:
    server.set("b", "127.0.0.1:2", role="prefill", revision="r2", ready=False)
    await until(lambda: known.uids == {"a", "b"}, "added")
    assert known.endpoints["b"] == WorkerEndpoint(
        "127.0.0.1:2", "prefill", "r2", "demo-b", "b", False, False, "2026-01-01T00:00:00Z"
    )
    server.bookmark()
    server.set("b", "127.0.0.1:2", role="prefill", revision="r2")
    await until(lambda: known.endpoints["b"].ready, "ready")
    server.set("b", "127.0.0.1:2", role="prefill", leaving=True)
    await until(lambda: known.endpoints["b"].leaving, "leaving")
    server.delete("b")
    await until(lambda: known.uids == {"a"}, "deleted")
    assert server.lists == 1


@pytest.mark.parametrize("part", [b"", b'{"type": "ADDED", "obj', b'{"type": "ADDED", "object": 1}}\n', b"nonsense\n"])
async def test_changes_during_an_interrupted_watch_are_found(server: FakeApiServer, known: Known, part: bytes) -> None:
    server.delete("a", sent=False)
    server.cut(part)
    server.set("b", "127.0.0.1:2")
    await until(lambda: known.uids == {"b"}, "listed again")
    await until(lambda: bool(server.watches), "watched again")
    server.set("c", "127.0.0.1:3")
    await until(lambda: known.uids == {"b", "c"}, "the log line")


@pytest.mark.parametrize("how", ["in the stream", "as the answer"])
async def test_a_version_that_is_gone(server: FakeApiServer, known: Known, how: str) -> None:
    server.delete("a", sent=False)
    if how == "in the stream":
        server.gone()
    else:
        server.oldest = server.version + 1
        server.cut()
        await until(lambda: server.lists >= 3, "asked again and again")
        server.oldest = 0
    await until(lambda: known.uids == set() and len(server.watches) == 1, "listed again")


async def test_known_workers_stay_while_the_server_is_away(server: FakeApiServer, known: Known) -> None:
    server.status = 503
    server.pods.clear()
    server.cut()
    before = server.asked
    await until(lambda: server.asked >= before + 3, "it is asked again")
    assert known.uids == {"a"}
    server.status = 200
    server.set("b", "127.0.0.1:2")
    await until(lambda: known.uids == {"b"}, "it is back")


async def test_a_delete_that_was_lost_is_found_by_the_next_list(server: FakeApiServer, known: Known) -> None:
    server.delete("a", sent=False)
    server.bookmark()
    assert known.uids == {"a"}
    server.cut()  # as the server does after timeoutSeconds
    await until(lambda: known.uids == set(), "listed again")


async def test_a_silent_watch_is_dead(server: FakeApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_kube.watch._QUIET_SECONDS", 0.1)
    watch = await PodWatch.connect("ns", "demo", Known().on_change)
    running = asyncio.create_task(watch.run())
    await until(lambda: server.lists >= 3, "listed again though nothing ended")
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_no_server_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The watch retries all the time, and logs the error once."""
    monkeypatch.setattr("v4_router.pods._REPORTED_SECONDS", 0.5)
    async with api_server(FakeApiServer(), tmp_path, monkeypatch):
        pass
    watch = await PodWatch.connect("ns", "demo", Known().on_change)
    running = asyncio.create_task(watch.run())
    await until(lambda: "keeping the known workers" in caplog.text, "the log line")
    assert watch.problem() == "", "it may be back in a moment"
    await until(lambda: "Cannot connect" in watch.problem(), "it has been away for long")
    assert caplog.text.count("keeping the known workers") == 1
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_a_token_that_is_refused_is_read_again(
    server: FakeApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("v4_router.pods._REPORTED_SECONDS", 0.0)
    caplog.set_level(logging.INFO, "v4_router.pods")
    known = Known()
    watch = await PodWatch.connect("ns", "demo", known.on_change)
    running = asyncio.create_task(watch.run())
    await until(lambda: bool(server.watches), "the watch began")
    assert watch.problem() == ""
    server.token = "renewed"
    server.set("b", "127.0.0.1:2")
    server.cut()
    message = "the pods of namespace ns cannot be read: HTTP 401: Unauthorized"
    asked = server.asked
    await until(
        lambda: watch.problem() == message and server.asked > asked + 2,
        "the problem is reported, and the watch retries",
    )
    assert caplog.text.count(message) == 1
    file = tmp_path / "kubeconfig"
    file.write_text(file.read_text().replace("token: key", "token: renewed"))
    server.set("c", "127.0.0.1:3")
    await until(lambda: known.uids == {"a", "b", "c"}, "it has the new token")
    assert watch.problem() == ""
    assert "can be read again" in caplog.text
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("file", [None, "nowhere", "broken", "garbled"])
async def test_no_way_to_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str | None) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (tmp_path / "broken").write_text("{}")
    (tmp_path / "garbled").write_text("{")
    if file:
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / file))
    with pytest.raises(ConfigError, match="the Kubernetes API cannot be reached"):
        await PodWatch.connect("ns", "demo", Known().on_change)


async def test_a_router_serves_with_the_workers_that_it_finds(
    server: FakeApiServer, deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    caches = Caches()
    workers = {role: await FakeWorker(role, caches).start() for role in ("prefill", "decode")}
    try:
        server.delete("a")
        for role, worker in workers.items():
            server.set(role, worker.address, role=role)
        d = await deploy(0, 0, namespace="ns", deployment="demo")
        assert (await d.complete([10], max_tokens=3, model=MODEL)).status_code == 200
        assert d.router.fleet.pairs() == {("r1", "one")}
        monkeypatch.setattr("v4_router.pods._REPORTED_SECONDS", 0.0)
        assert fleet_status(d.router)["router"]["error"] == ""
        server.status = 500
        server.cut()
        await until(lambda: not server.watches, "the API server is away")
        message = "the pods of namespace ns cannot be read: HTTP 500: away"
        await until(lambda: fleet_status(d.router)["router"]["error"] == message, "/fleet has the error")
        answer = await d.complete([10], max_tokens=3)
        assert answer.headers["x-v4serve-route"].startswith(f"prefill={workers['prefill'].address};")
        server.status = 200
        server.set("prefill", workers["prefill"].address, role="prefill", leaving=True)
        link = d.router.fleet.links[workers["prefill"].address]
        await until(lambda: link.endpoint.leaving, "it is back, and tells")
        assert (await d.complete([10], max_tokens=3)).headers["x-v4serve-route"].startswith("prefill=-;")
    finally:
        for worker in workers.values():
            await worker.kill()
