"""Facts: what is computed from two samples, which two samples are compared, and the JSON form."""

import asyncio
import json
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from itertools import pairwise
from math import ceil, inf
from typing import Any

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.router.conftest import Deploy, Deployment, listening, until
from v4_core.metrics import SECONDS
from v4_core.v1 import worker_pb2 as pb
from v4_router.app import build_monitoring_app
from v4_router.facts import APART_SECONDS, WINDOW_SECONDS, Facts, Recent, Sample, facts, from_json, quantile
from v4_router.metrics import Metrics
from v4_router.status import sample

LOAD = {
    "running": 2, "waiting": 1, "queued_tokens": 600, "slots_total": 100, "slots_free": 50, "slots_evictable": 30,
    "blocks_used": 20, "checkpoint_slots_used": 8, "tails_total": 16, "tails_used": 3, "leases": 4,
}  # fmt: skip
REVISION = {"revision": "a", "probed": True, "error": ""}
START = sample(Metrics(), 0.0)


def worker(role: str, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "pod": name, "address": f"10.0.0.1:{len(name)}", "role": role, "revision": "a", "state": "ready", "error": "",
        "load": LOAD, **changes,
    }  # fmt: skip


def fleet(*workers: Mapping[str, Any], **router: Any) -> dict[str, Any]:
    return {
        "router": {"version": "1", "served_name": "m", "ready": True, "requests": 3, **router},
        "workers": workers,
        "revisions": [REVISION],
    }


def known(*workers: Mapping[str, Any]) -> Facts:
    """Returns the facts of a router without requests in the last 10 s."""
    return facts(START, replace(START, at=10.0), fleet(*workers), 0)


def test_rates_are_differences_over_time() -> None:
    metrics = Metrics()

    def count(ok: int, prompt: int, cached: int, moved: int, seconds: float) -> None:
        for endpoint, outcome, requests in (
            ("chat", "ok", ok), ("completions", "ok", 2), ("chat", "client_gone", 1), ("chat", "503", 3),
        ):  # fmt: skip
            metrics.requests.labels(endpoint, outcome).inc(requests)
        metrics.prompt_tokens.inc(prompt)
        metrics.cached_tokens.inc(cached)
        metrics.generated_tokens.inc(40)
        for revision in ("a", "b"):
            metrics.transferred(pb.Adopted(bytes=moved, seconds=seconds), revision)
        metrics.retries.labels("decode", "lost").inc(2)
        metrics.retries.labels("prefill", "lost").inc()
        metrics.recomputations.inc(5)
        metrics.migrations.inc(6)

    count(100, 1000, 1000, 5000, 7.0)
    before = sample(metrics, 10.0)
    count(6, 800, 200, 600, 1.5)
    metrics.keep_revisions([])  # the sum keeps the transfers of a removed revision
    seen = facts(before, sample(metrics, 14.0), fleet(), 7)
    assert (seen.seconds, seen.requests, seen.failed) == (4.0, 3.0, 0.75)
    assert (seen.prompt_tokens, seen.generated_tokens, seen.hit_ratio) == (200.0, 10.0, 0.25)
    assert (seen.transfers, seen.transferred_bytes, seen.transfer_speed) == (0.5, 300.0, 400.0)
    assert (seen.retries, seen.recomputations, seen.migrations, seen.router.waiting_for_room) == (6, 10, 12, 7)


def test_nothing_is_known_of_an_empty_window() -> None:
    one = replace(START, prompt_tokens=100, cached_tokens=50)
    seen = facts(one, one, fleet(), 0)
    assert (seen.requests, seen.hit_ratio, seen.transfer_speed, seen.ttft.p50) == (None, None, None, None)
    still = facts(one, replace(one, at=6.0), fleet(), 0)
    assert (still.prompt_tokens, still.hit_ratio, still.ttft.p99) == (0, None, None)


def test_pools_are_sums_of_the_workers_that_are_up() -> None:
    prefill, decode = known(
        worker("decode", "d-1"), worker("prefill", "p-2", state="down", error="UNAVAILABLE"), worker("prefill", "p-1")
    ).pools
    assert (prefill.role, prefill.ready, [one.name for one in prefill.workers]) == ("prefill", 1, ["p-1", "p-2"])
    assert (prefill.running, prefill.waiting, prefill.queued_tokens, prefill.leases) == (2, 1, 600, 4)
    (one,) = decode.workers
    assert (one.used, one.checkpoint, one.cached, one.free) == (20, 8, 22, 50)
    assert one.used + one.checkpoint + one.cached + one.free == one.slots


def test_a_worker_without_a_pod_goes_by_its_address() -> None:
    assert known(worker("decode", "", address="127.0.0.1:5000")).pools[1].workers[0].name == "127.0.0.1:5000"


def at(seconds: float) -> Sample:
    return replace(START, at=seconds)


def test_the_window_slides() -> None:
    recent = Recent()
    looks = [recent.add(at(float(second))).at for second in range(15)]
    assert looks == [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4]


def test_rates_are_unknown_after_a_pause() -> None:
    recent = Recent()
    recent.add(at(0.0))
    assert recent.add(at(1.0)).at == 0.0
    assert recent.add(at(60.0)).at == 60.0
    assert recent.add(at(61.0)).at == 60.0


def test_a_new_reader_gets_rates_of_the_whole_window() -> None:
    recent = Recent()
    for second in range(6):
        recent.add(at(float(second)))
    assert [recent.add(at(5.001 + second)).at for second in range(3)] == [0.0, 0.0, 0.0]


@given(st.lists(st.sampled_from((0.0, 0.001, 0.3, 0.5, 1.0, 4.0, 9.0, 11.0)) | st.floats(0, 12), max_size=80))
@example([0.01] * 80)
@example([0.2, 9.8, 0.1])
def test_every_reader_is_compared_with_a_sample_of_the_window(gaps: Sequence[float]) -> None:
    """With any number of readers, a rate is over at least APART_SECONDS and at most the window, and over all of it for
    which there are samples, except samples too close to a kept one."""
    recent = Recent()
    now, looks = 1000.0, list[float]()
    for gap in (0.0, *gaps):
        now += gap
        looks.append(now)
        seconds = now - recent.add(at(now)).at
        assert seconds == 0 or APART_SECONDS <= seconds <= WINDOW_SECONDS
        first = next(look for look in looks if now - look <= WINDOW_SECONDS)
        kept = next((look for look in looks if look - first >= APART_SECONDS), now)
        assert seconds >= now - kept or now - kept < APART_SECONDS
        assert len(recent._samples) <= WINDOW_SECONDS / APART_SECONDS + 1


@given(*2 * [st.lists(st.floats(0, 2e4) | st.sampled_from(SECONDS), max_size=60)], st.sampled_from((0.5, 0.9, 0.99)))
def test_quantiles_lie_in_the_bucket_of_the_true_one(earlier: list[float], within: list[float], share: float) -> None:
    """Observations before and within the window are counted by prometheus_client; only those within it matter."""
    metrics = Metrics()

    def look(seconds: float, observed: Sequence[float]) -> Sample:
        for value in observed:
            metrics.ttft.observe(value)
            metrics.itl.observe(0)
        return sample(metrics, seconds)

    seen = facts(look(0, earlier), look(1, within), fleet(), 0)
    found = {0.5: seen.ttft.p50, 0.9: seen.ttft.p90, 0.99: seen.ttft.p99}[share]
    if not within:
        assert found is None
        return
    true = sorted(within)[ceil(share * len(within)) - 1]
    bounds = (0.0, *SECONDS, SECONDS[-1])
    place = bisect_left(SECONDS, true)
    assert found is not None
    assert seen.itl.p99 == pytest.approx(0.99 * SECONDS[0])
    assert bounds[place] - 1e-12 <= found <= bounds[place + 1] + 1e-12


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.lists(st.floats(0.01, 1), min_size=2, max_size=5))
def test_quantiles_rise_with_their_share(counts: list[int], shares: list[float]) -> None:
    buckets = [(float(bound), float(sum(counts[: bound + 1]))) for bound in range(len(counts) - 1)]
    buckets.append((inf, float(sum(counts))))
    found = [quantile(share, buckets) for share in sorted(shares)]
    if not sum(counts):
        assert set(found) == {None}
        return
    values = [value for value in found if value is not None]
    assert len(values) == len(found)
    assert all(a <= b + 1e-9 for a, b in pairwise(values))


def test_quantiles_by_hand() -> None:
    buckets = [(1.0, 10.0), (2.0, 30.0), (4.0, 40.0), (inf, 50.0)]
    assert [quantile(share, buckets) for share in (0.2, 0.4, 0.8, 0.99)] == [1.0, 1.5, 4.0, 4.0]


async def test_a_router_serves_its_facts(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_router.facts.WINDOW_SECONDS", 1000.0)
    d: Deployment = await deploy(1, 2)
    first = await d.http.get("/facts")
    assert first.headers["content-type"] == "application/json"
    assert first.headers["cache-control"] == "no-store"
    assert (first.json()["seconds"], first.json()["requests"], first.json()["ttft"]["p50"]) == (0, None, None)
    for _ in range(4):
        assert (await d.complete([10] * 300, max_tokens=5)).status_code == 200
    assert (await d.complete("x", max_tokens=1, n=-1)).status_code == 400
    d.router.metrics.ended("chat", "503", (), answered=False)
    seen = await after(d, requests=6)
    assert seen.requests == pytest.approx(6 / seen.seconds)
    assert seen.failed == pytest.approx(1 / seen.seconds), "what clients ask wrongly is no failure"
    assert seen.generated_tokens == pytest.approx(20 / seen.seconds)
    assert seen.transfer_speed == 4000, "fake workers move 1000 bytes in a quarter of a second, and wait for as long"
    assert seen.ttft.p50 is not None
    assert seen.itl.p50 is not None
    assert (seen.router.served_name, seen.router.ready, seen.router.requests) == ("tiny", True, 0)
    prefill, decode = seen.pools
    assert [one.address for one in (*prefill.workers, *decode.workers)] == [
        d.prefill[0].address,
        *sorted(w.address for w in d.decode),
    ]
    assert [(one.serves, one.error) for one in seen.revisions] == [(True, "")]


async def test_all_ports_of_a_router_share_the_window(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_router.facts.APART_SECONDS", 0.0)
    d = await deploy(1, 1)
    assert (await d.http.get("/facts")).json()["seconds"] == 0
    async with listening(build_monitoring_app(d.router)) as url, httpx.AsyncClient(base_url=url) as client:
        assert (await client.get("/facts")).json()["seconds"] > 0


async def test_facts_count_the_requests_that_wait_for_room(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    d.decode[0].refuse_always = pb.OVERLOADED
    d.decode[0].tails = 0
    asked = asyncio.create_task(d.complete([10] * 300, max_tokens=5))
    await until(lambda: len(d.router.fleet.room_queue) == 1, "the cache waits")
    assert (await d.http.get("/facts")).json()["router"]["waiting_for_room"] == 1
    asked.cancel()


async def after(d: Deployment, requests: int) -> Facts:
    """Returns the facts once so many requests have been counted since the first sample."""
    async with asyncio.timeout(30):
        while True:
            seen = from_json((await d.http.get("/facts")).json())
            if seen.requests and round(seen.requests * seen.seconds) >= requests:
                return seen
            await asyncio.sleep(0.05)


def test_facts_survive_json() -> None:
    one = known(worker("decode", "d-1"), worker("prefill", "p-1"))
    told = json.loads(json.dumps(asdict(one)))
    assert told["hit_ratio"] is None
    assert from_json(told) == one
    assert from_json({**told, "later": 1}) == one, "of a later version"


@pytest.mark.parametrize(("path", "value"), [
    ((), []), ((), None), (("router",), []), (("router", "served_name"), None), (("pools",), {}),
    (("pools", 1, "workers", 0, "running"), "2"), (("pools", 1, "workers", 0), None), (("retries",), None),
    (("ttft", "p50"), "1 s"), (("revisions",), None),
])  # fmt: skip
def test_json_that_no_router_sends_is_refused(path: Sequence[Any], value: object) -> None:
    told = root = {"": json.loads(json.dumps(asdict(known(worker("decode", "d-1")))))}
    from_json(root[""])
    *way, last = ("", *path)
    for key in way:
        told = told[key]
    told[last] = value
    with pytest.raises(TypeError):
        from_json(root[""])


@pytest.mark.parametrize("part", list(asdict(known())))
def test_nothing_is_left_out(part: str) -> None:
    told = asdict(known())
    del told[part]
    with pytest.raises(KeyError):
        from_json(told)
