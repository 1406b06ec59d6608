"""The routes for monitoring: /fleet, /health and /ready."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.router.conftest import Deploy, Deployment, listening, until
from v4_core.v1 import worker_pb2 as pb
from v4_router.app import build_monitoring_app


async def watched(d: Deployment, path: str = "/fleet") -> httpx.Response:
    """Returns the answer of the monitoring port to a request without a key."""
    async with listening(build_monitoring_app(d.router)) as url, httpx.AsyncClient(base_url=url) as client:
        return await client.get(path)


async def fleet(d: Deployment) -> dict[str, Any]:
    answer = await watched(d)
    assert answer.status_code == 200
    return dict(answer.json())


async def test_the_fleet(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    p, w = d.prefill[0], d.decode[0]
    d.discover(p.endpoint(revision="r1", pod="p-0", uid="1"), w.endpoint(revision="r1", pod="d-0", uid="2"))
    await d.wait_up()
    w.step_seconds = 0.005
    running = asyncio.create_task(d.complete([10], max_tokens=200))
    await until(lambda: d.router.fleet.links[w.address].load.running == 1, "decode says that it runs")
    await until(lambda: d.router.metrics.transfers["r1"].bytes == 2000, "prefill's probe and this were transferred")
    told = await fleet(d)
    assert told["router"].pop("version")
    moved = {name: told["router"].pop(name) for name in ("transfers", "transferred_bytes", "transfer_seconds")}
    assert moved["transferred_bytes"] == 1000 * moved["transfers"] >= 2000, "of former revisions too"
    assert moved["transfer_seconds"] == 0.25 * moved["transfers"]
    router = {"served_name": "tiny", "ready": True, "requests": 1, "error": "", "keys_since": ""}
    assert told["router"] == router
    prefill, decode = told["workers"]
    assert decode.pop("load") == {field.name: 0 for field in pb.Load.DESCRIPTOR.fields} | {
        "running": 1, "draining": False, "slots_total": 10_000, "slots_free": 9_999, "blocks_used": 1,
        "tails_total": 1000, "tails_used": 1,
    }  # fmt: skip
    assert decode == {
        "address": w.address, "pod": "d-0", "role": "decode", "revision": "r1", "up": True, "ready": True,
        "leaving": False, "routable": True, "probed": True, "state": "ready", "error": "", "fingerprint": "one",
        "instance": w.instance, "max_model_len": 200_000,
    }  # fmt: skip
    assert (prefill["role"], prefill["pod"], prefill["routable"]) == ("prefill", "p-0", True)
    (revision,) = told["revisions"]
    assert revision == {
        "revision": "r1", "probed": True, "error": "", "transport": "grpc",
        "transfers": 2, "transferred_bytes": 2000, "transfer_seconds": 0.5,
    }  # fmt: skip
    await running


async def test_what_is_wrong_with_a_revision(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    (p, q), (a, b) = d.prefill, d.decode
    await b.kill()
    b.refuse_always = pb.INTERNAL
    await b.restart()
    d.discover(
        p.endpoint(revision="old"), a.endpoint(revision="old"),
        q.endpoint(revision="new"), b.endpoint(revision="new"),
    )  # fmt: skip
    link = d.router.fleet.links[b.address]
    await until(lambda: "INTERNAL" in link.error, "the probe failed")
    new, old = (await fleet(d))["revisions"]
    assert (old["revision"], old["probed"], old["error"]) == ("old", True, "")
    assert (new["revision"], new["probed"]) == ("new", False)
    assert new["error"] == f"probe of decode worker {b.address}: INTERNAL: refused: INTERNAL"
    d.discover(p.endpoint(revision="old"), a.endpoint(revision="old"), b.endpoint(revision="new", ready=False))
    assert [(r["revision"], r["error"]) for r in (await fleet(d))["revisions"]] == [("new", ""), ("old", "")]


async def test_a_revision_is_proven_only_while_it_has_a_pair(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    p, w = d.prefill[0], d.decode[0]
    d.discover(p.endpoint(revision="r", ready=False), w.endpoint(revision="r"))
    (revision,) = (await fleet(d))["revisions"]
    assert not revision["probed"]
    assert d.router.ready, "decode serves alone"


async def test_health_and_readiness(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    assert [(await watched(d, path)).status_code for path in ("/health", "/ready", "/metrics", "/v1/models")] == [
        200, 200, 200, 404,
    ]  # fmt: skip
    d.router.draining = True
    answers = [await watched(d, "/ready"), await d.http.get("/ready")]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert answers[0].json()["error"]["message"] == "the router is stopping"
    assert (await d.complete([10], max_tokens=3)).headers["connection"] == "close"
    assert not (await fleet(d))["router"]["ready"]


async def test_a_failed_background_task_makes_the_router_unhealthy(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    d = await deploy(1, 1)
    monkeypatch.setattr(d.router.fleet, "links", None)  # makes the prober raise
    await until(lambda: not d.router.healthy, "the router is unhealthy")
    monkeypatch.undo()
    assert (await watched(d, "/health")).status_code == 503
    assert "a background task of the router failed" in caplog.text
