"""A watch follows the server through broken, silent and expired streams."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from tests.kube.conftest import until
from tests.kube.fake_server import FakeServer, status
from v4_core.kubernetes import Json
from v4_kube import watch as module
from v4_kube.client import KubeClient
from v4_kube.errors import ApiError
from v4_kube.watch import Watch

CONFIG_MAPS = "/api/v1/configmaps"


def path(name: str) -> str:
    return f"/api/v1/namespaces/n/configmaps/{name}"


def obj(name: str) -> dict[str, Any]:
    return {"metadata": {"namespace": "n", "name": name}}


class Followed:
    """A watch, and the names of the objects that it passed on."""

    def __init__(self, api: KubeClient, *, relist: bool = False) -> None:
        self.names: set[str] = set()
        self.failures: list[int] = []
        self.lists = 0
        self.watch = Watch(api, CONFIG_MAPS, "a=b", self, relist=relist)

    def holds(self, name: str) -> bool:
        return name in self.names

    def replace(self, objects: Sequence[Json], version: str) -> None:
        self.lists += 1
        self.names = {each["metadata"]["name"] for each in objects}

    def put(self, obj: Json) -> None:
        self.names.add(obj["metadata"]["name"])

    def remove(self, obj: Json) -> None:
        self.names.discard(obj["metadata"]["name"])

    def failed(self, error: ApiError, failures: int) -> None:
        self.failures.append(failures)


Follow = Callable[[bool], Followed]


@pytest.fixture
async def follow(api: KubeClient) -> AsyncIterator[Follow]:
    """Starts a watch."""
    tasks: list[asyncio.Task[None]] = []

    def start(relist: bool) -> Followed:
        made = Followed(api, relist=relist)
        tasks.append(asyncio.create_task(made.watch.run()))
        return made

    yield start
    for task in tasks:
        task.cancel()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(end) for end in ends] == [asyncio.CancelledError] * len(tasks)


async def test_a_broken_stream_is_resumed_without_a_new_list(server: FakeServer, follow: Follow) -> None:
    followed = follow(False)
    await followed.watch.synced.wait()
    for name in "abc":
        server.cut_streams()
        await server.put(path(name), obj(name))
        await until(partial(followed.holds, name))
    assert server.count("GET /api/v1/configmaps") > 3
    server.fault = lambda request: None if "watch" in request.query else status(500, "no list wanted")
    await server.put(path("d"), obj("d"))
    await until(lambda: "d" in followed.names)


async def test_after_an_expired_version_a_new_list_shows_what_was_deleted(server: FakeServer, follow: Follow) -> None:
    await server.put(path("a"), obj("a"))
    await server.put(path("gone"), obj("gone"))
    followed = follow(False)
    await followed.watch.synced.wait()
    server.fault = lambda _: status(503, "down")
    server.cut_streams()
    await server.remove(path("gone"))
    await server.put(path("b"), obj("b"))
    await server.forget_history()
    server.fault = lambda _: None
    await until(lambda: followed.names == {"a", "b"})


@pytest.mark.parametrize("answer", [status(410, "Gone"), status(403, "Forbidden"), web.Response(status=500)])
async def test_a_watch_that_is_refused_is_retried(
    server: FakeServer, follow: Follow, answer: web.Response, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    refused = 0

    def refuse(request: web.Request) -> web.Response | None:
        nonlocal refused
        if "watch" not in request.query or refused == 2:
            return None
        refused += 1
        return web.Response(status=answer.status, body=answer.body)

    server.fault = refuse
    followed = follow(False)
    await until(lambda: refused == 2)
    await server.put(path("a"), obj("a"))
    await until(lambda: followed.names == {"a"})


async def test_a_dead_stream_is_noticed(server: FakeServer, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_QUIET_SECONDS", 0.2)
    followed = follow(False)
    await followed.watch.synced.wait()
    server.mute = True
    await server.put(path("a"), obj("a"))
    asked = server.count("GET")
    await until(lambda: server.count("GET") > asked)
    server.mute = False
    await until(lambda: followed.names == {"a"})


async def test_a_long_list_comes_in_pages(server: FakeServer, follow: Follow) -> None:
    pages = {"": ("a", "next"), "next": ("b", "")}

    def page(request: web.Request) -> web.Response | None:
        if "watch" in request.query:
            return None
        assert request.query["limit"] == "500"
        name, following = pages[request.query.get("continue", "")]
        item = obj(name)
        item["metadata"] |= {"uid": name, "resourceVersion": "3", "creationTimestamp": ""}
        return web.json_response({"metadata": {"resourceVersion": "5", "continue": following}, "items": [item]})

    server.fault = page
    followed = follow(False)
    await followed.watch.synced.wait()
    assert followed.names == {"a", "b"}


def _asked_again(server: FakeServer, before: int) -> bool:
    return server.count("GET") > before


@pytest.mark.parametrize("relist", [False, True])
async def test_after_a_stream_only_a_watch_that_relists_finds_what_the_stream_lost(
    server: FakeServer, follow: Follow, relist: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.01)
    await server.put(path("a"), obj("a"))
    followed = follow(relist)
    await followed.watch.synced.wait()
    del server.objects[path("a")]  # without an event
    for _ in range(2):
        asked = server.count("GET")
        server.cut_streams()
        await until(partial(_asked_again, server, asked))
    await server.put(path("b"), obj("b"))
    await until(partial(followed.holds, "b"))
    assert (followed.names, followed.lists > 1) == (({"b"}, True) if relist else ({"a", "b"}, False))


async def test_the_back_off_grows_although_each_list_succeeds(
    server: FakeServer, follow: Follow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)
    server.fault = lambda request: status(403, "Forbidden") if "watch" in request.query else None
    followed = follow(False)
    await until(lambda: len(followed.failures) >= 4)
    assert followed.failures[:4] == [1, 2, 3, 4]
    assert followed.lists >= 4
