"""What two looks at a router mean."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import ceil, inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from v4_cli.facts import TTFT, Recent, Scrape, facts, quantile, scrape

BOUNDS = (0.001, 0.01, 0.1, 1.0, 10.0)
LOAD = {
    "running": 2, "waiting": 1, "queued_tokens": 600, "slots_total": 100, "slots_free": 50, "slots_evictable": 30,
    "blocks_used": 20, "checkpoint_slots_used": 8, "tails_total": 16, "tails_used": 3, "leases": 4,
}  # fmt: skip


def worker(role: str, name: str, **changes: Any) -> dict[str, Any]:
    return {
        "pod": name, "address": f"10.0.0.1:{len(name)}", "role": role, "revision": "a", "state": "ready", "error": "",
        "load": LOAD, **changes,
    }  # fmt: skip


def fleet(*workers: dict[str, Any], **moved: dict[str, float]) -> dict[str, Any]:
    zeros = {"transfers": 0, "transferred_bytes": 0, "transfer_seconds": 0}
    total = {name: sum(sums.get(name, 0) for sums in moved.values()) for name in zeros}
    return {
        "router": {"version": "1", "served_name": "m", "ready": True, "requests": 3, **total},
        "workers": list(workers),
        "revisions": [{"revision": name, "probed": True, "error": "", **zeros, **sums} for name, sums in moved.items()],
    }


def at(seconds: float, told: dict[str, Any] | None = None, **counters: float) -> Scrape:
    text = "".join(f"v4serve_{name}_total {value}\n" for name, value in counters.items())
    return scrape(seconds, told or fleet(), text)


def test_rates_are_differences_over_time() -> None:
    before = scrape(10.0, fleet(a={"transfers": 1, "transferred_bytes": 100, "transfer_seconds": 1.0}), "")
    text = """
# TYPE v4serve_requests_total counter
v4serve_requests_total{endpoint="chat",outcome="ok"} 6.0
v4serve_requests_total{endpoint="completions",outcome="ok"} 2.0
v4serve_requests_total{endpoint="chat",outcome="client_gone"} 1.0
v4serve_requests_total{endpoint="chat",outcome="503"} 3.0
v4serve_prompt_tokens_total 800.0
v4serve_cached_prompt_tokens_total 200.0
v4serve_generated_tokens_total 40.0
v4serve_retries_total{role="decode",reason="gone"} 2.0
v4serve_retries_total{role="prefill",reason="gone"} 1.0
v4serve_requests_waiting_for_room 7.0
"""
    moved = {"transfers": 5, "transferred_bytes": 900, "transfer_seconds": 3.0}
    seen = facts(before, scrape(14.0, fleet(a=moved, b={"transferred_bytes": 400, "transfer_seconds": 1.0}), text))
    assert (seen.seconds, seen.requests, seen.failed) == (4.0, 3.0, 0.75)
    assert (seen.prompt_tokens, seen.generated_tokens, seen.hit_ratio) == (200.0, 10.0, 0.25)
    assert (seen.transfers, seen.transferred_bytes, seen.transfer_speed) == (1.0, 300.0, 400.0)
    assert (seen.retries, seen.recomputations, seen.router["waiting_for_room"]) == (3, 0, 7)


def test_nothing_is_known_of_an_empty_window() -> None:
    one = at(5.0, prompt_tokens=100, cached_prompt_tokens=50)
    seen = facts(one, one)
    assert (seen.requests, seen.hit_ratio, seen.transfer_speed, seen.ttft.p50) == (None, None, None, None)
    still = facts(one, replace(one, at=6.0))
    assert (still.prompt_tokens, still.hit_ratio, still.ttft.p99) == (0, None, None)


def test_pools_are_sums_of_who_is_up() -> None:
    told = fleet(
        worker("decode", "d-1"), worker("prefill", "p-2", state="down", error="UNAVAILABLE"), worker("prefill", "p-1")
    )
    prefill, decode = facts(at(0, told), at(1, told)).pools
    assert (prefill.role, prefill.ready, [one.name for one in prefill.workers]) == ("prefill", 1, ["p-1", "p-2"])
    assert (prefill.running, prefill.queued_tokens, prefill.leases) == (2, 600, 4)
    (one,) = decode.workers
    assert (one.used, one.checkpoint, one.cached, one.free) == (20, 8, 22, 50)
    assert one.used + one.checkpoint + one.cached + one.free == one.slots


def test_a_worker_without_a_pod_goes_by_its_address() -> None:
    told = fleet(worker("decode", "", address="127.0.0.1:5000"))
    assert facts(at(0, told), at(1, told)).pools[1].workers[0].name == "127.0.0.1:5000"


def test_the_window_slides() -> None:
    recent = Recent(10.0)
    seen = [recent.add(at(float(second), generated_tokens=second**2)) for second in range(15)]
    assert seen[0].generated_tokens is None
    assert seen[4].generated_tokens == 4.0
    assert (seen[14].seconds, seen[14].generated_tokens) == (10.0, (14**2 - 4**2) / 10)


@given(st.lists(st.integers(1, 100) | st.just(0), min_size=2, max_size=30), st.data())
def test_restarts_lose_nothing_that_was_seen_after_them(growths: list[int], data: st.DataObject) -> None:
    """Against a router of which we know when it restarted; one that counted past its former sum is not noticed."""
    recent, count, since = Recent(1000.0), 0, 0
    before: int | None = None
    for second, growth in enumerate(growths):
        if count and data.draw(st.booleans(), "restart"):
            count = data.draw(st.integers(0, count - 1), "counted since")
            since, before = second - 1, 0
        else:
            count += growth
        before = count if before is None else before
        seen = recent.add(at(float(second), generated_tokens=count))
        if second:
            assert seen.seconds == second - since
            assert seen.generated_tokens == (count - before) / seen.seconds


def test_revisions_come_and_go_without_a_trace_in_the_transfers() -> None:
    """A revision's own sums are gone with it, and begin anew when it is back: what counts is the router's total."""
    recent = Recent(10.0)

    def look(seconds: float, total: int, *revisions: str) -> float | None:
        sums: Any = {name: {"transferred_bytes": 1} for name in revisions}
        told = fleet(**sums)
        told["router"]["transferred_bytes"] = total
        return recent.add(at(seconds, told, generated_tokens=7)).transferred_bytes

    assert look(0, 600, "a", "b") is None
    assert look(2, 800, "b") == 100
    assert look(4, 1000, "a", "b") == 100
    assert look(6, 1200) == 100


@st.composite
def _observations(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    values = st.lists(st.floats(0, 20) | st.sampled_from(BOUNDS), max_size=60)
    return draw(values), draw(values)


@given(_observations(), st.sampled_from((0.5, 0.9, 0.99)))
def test_quantiles_lie_in_the_bucket_of_the_true_one(values: tuple[list[float], list[float]], share: float) -> None:
    """prometheus_client counts, before and within the window; only what is within counts."""
    earlier, within = values
    registry = CollectorRegistry()
    histogram = Histogram(TTFT.removesuffix("_bucket"), "x", buckets=BOUNDS, registry=registry)

    def look(seconds: float, observed: Sequence[float]) -> Scrape:
        for value in observed:
            histogram.observe(value)
        return scrape(seconds, fleet(), generate_latest(registry).decode())

    seen = facts(look(0, earlier), look(1, within)).ttft
    found = {0.5: seen.p50, 0.9: seen.p90, 0.99: seen.p99}[share]
    if not within:
        assert found is None
        return
    true = sorted(within)[ceil(share * len(within)) - 1]
    bounds = (0.0, *BOUNDS, BOUNDS[-1])
    place = bisect_left(BOUNDS, true)
    assert found is not None
    assert bounds[place] - 1e-12 <= found <= bounds[place + 1] + 1e-12


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8), st.lists(st.floats(0.01, 1), min_size=2, max_size=5))
def test_quantiles_rise_with_their_share(counts: list[int], shares: list[float]) -> None:
    buckets = [(float(bound), float(sum(counts[: bound + 1]))) for bound in range(len(counts) - 1)]
    buckets.append((inf, float(sum(counts))))
    found = [quantile(share, buckets) for share in sorted(shares)]
    if not sum(counts):
        assert set(found) == {None}
        return
    known = [value for value in found if value is not None]
    assert len(known) == len(found)
    assert all(a <= b + 1e-9 for a, b in pairwise(known))


def test_quantiles_by_hand() -> None:
    buckets = [(1.0, 10.0), (2.0, 30.0), (4.0, 40.0), (inf, 50.0)]
    assert [quantile(share, buckets) for share in (0.2, 0.4, 0.8, 0.99)] == [1.0, 1.5, 4.0, 4.0]


@pytest.mark.parametrize(
    ("told", "text"),
    [({"hello": "world"}, ""), ([], ""), (fleet(), "<html>not metrics</html>"), ({"router": {}}, "")],
)
def test_what_is_no_routers_word_is_told(told: Any, text: str) -> None:
    with pytest.raises((KeyError, TypeError, ValueError)):
        scrape(0, told, text)
