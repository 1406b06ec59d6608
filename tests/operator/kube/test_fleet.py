"""Routers that answer, do not answer, or answer with something unexpected."""

import json
import socket
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from v4_core.kubernetes import ROLE_LABEL
from v4_operator.kube import fleet
from v4_operator.kube.fleet import Fleets, router_addresses

GOOD = {"router": {"ready": True}, "workers": [{"address": "a"}], "revisions": []}


def pod(address: str | None = "127.0.0.1", *, role: str = "router", phase: str = "Running", **metadata: Any) -> Any:
    status = {"phase": phase, **({"podIP": address} if address else {})}
    return {"kind": "Pod", "metadata": {"labels": {ROLE_LABEL: role}, **metadata}, "status": status}


def test_which_pods_are_asked() -> None:
    children = [
        pod("10.0.0.1"),
        pod("10.0.0.2", role="decode"),
        pod("10.0.0.3", phase="Pending"),
        pod("10.0.0.4", deletionTimestamp="now"),
        pod(None),
        {"kind": "Pod", "metadata": {"labels": {ROLE_LABEL: "router"}}},
        {"kind": "Service", "metadata": {"labels": {ROLE_LABEL: "router"}}, "status": {"podIP": "10.0.0.5"}},
        pod("fd00::1"),
    ]
    assert router_addresses(children) == ["10.0.0.1", "fd00::1"]


async def ask(answer: Any, *, pods: int = 1) -> list[dict[str, Any]]:
    async def handle(_: web.Request) -> web.StreamResponse:
        if isinstance(answer, web.Response):
            return answer
        return web.Response(text=answer if isinstance(answer, str) else json.dumps(answer))

    app = web.Application()
    app.router.add_get("/fleet", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    fleets = Fleets(runner.addresses[0][1])
    try:
        return await fleets.ask([pod() for _ in range(pods)])
    finally:
        await fleets.close()
        await runner.cleanup()


async def test_every_router_is_asked() -> None:
    assert await ask(GOOD, pods=3) == [GOOD] * 3
    assert await ask(GOOD, pods=0) == []


@pytest.mark.parametrize(
    "answer",
    [
        "{",
        "[]",
        {},
        {**GOOD, "router": None},
        {**GOOD, "workers": {}},
        {**GOOD, "workers": [1]},
        {**GOOD, "revisions": None},
        {**GOOD, "text": "x" * (5 << 20)},
        web.Response(status=503),
    ],
)
async def test_unexpected_answers_are_left_out(answer: Any) -> None:
    assert await ask(answer) == []


async def test_a_redirect_is_not_followed() -> None:
    assert await ask(web.Response(status=302, headers={"Location": "/fleet"})) == []


async def test_routers_that_cannot_be_reached_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "_TIMEOUT", aiohttp.ClientTimeout(total=0.2))
    silent = socket.create_server(("127.0.0.1", 0))
    for port in (1, silent.getsockname()[1]):
        fleets = Fleets(port)
        assert await fleets.ask([pod()]) == []
        await fleets.close()
    silent.close()
