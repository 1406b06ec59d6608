"""The metrics of the router and of its workers."""

import asyncio
from functools import partial

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.router.conftest import Deploy, Deployment, until
from tests.router.fake_worker import FakeWorker
from v4_core.v1 import worker_pb2 as pb
from v4_router.metrics import Metrics
from v4_router.placement import REASONS, RETRY
from v4_router.policy import Policy
from v4_router.workers import WorkerLink

BLOCK = 256
PROMPT = [10, 20, 30]


def prompt(blocks: int) -> list[int]:
    """Returns a prompt of so many complete blocks and a few more tokens."""
    return [10 + i % 100 for i in range(blocks * BLOCK + 10)]


async def names_of(d: Deployment, name: str) -> set[tuple[str, str]]:
    """Returns the worker and the role of each sample."""
    families = text_string_to_metric_families((await d.http.get("/metrics")).text)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {(sample.labels["worker"], sample.labels["role"]) for sample in samples}


def is_down(link: WorkerLink) -> bool:
    return not link.up


def test_every_counter_exists_before_its_first_event() -> None:
    registry = Metrics().registry
    for endpoint in ("completions", "chat"):
        for outcome in (
            "ok",
            "client_gone",
            "cancelled",
            "400",
            "401",
            "404",
            "408",
            "413",
            "429",
            "500",
            "503",
            "504",
        ):
            labels = {"endpoint": endpoint, "outcome": outcome}
            assert registry.get_sample_value("v4serve_requests_total", labels) == 0, labels
    assert registry.get_sample_value("v4serve_requests_total", {"endpoint": "other", "outcome": "401"}) == 0
    assert registry.get_sample_value("v4serve_requests_without_token_total") == 0
    for reason in (*REASONS, RETRY):
        assert registry.get_sample_value("v4serve_placements_total", {"reason": reason}) == 0
    for reason in pb.Reason.keys()[1:]:
        final = reason in ("INVALID", "DEADLINE")  # such a failure is not retried
        labels = {"role": "prefill", "reason": reason.lower()}
        assert registry.get_sample_value("v4serve_retries_total", labels) == (None if final else 0)
    assert registry.get_sample_value("v4serve_retries_total", {"role": "decode", "reason": "lost"}) == 0
    assert registry.get_sample_value("v4serve_probe_failures_total", {"role": "prefill"}) == 0


def test_the_process_exports_its_version_and_resources_but_nothing_about_python() -> None:
    text = generate_latest(Metrics().registry).decode()
    assert 'v4serve_process_info{version="' in text
    assert "process_cpu_seconds_total" in text
    assert "python_" not in text


async def test_a_request_by_its_parts(deploy: Deploy) -> None:
    d = await deploy()
    d.prefill[0].cached_tokens = 2
    await d.complete(PROMPT, max_tokens=5, n=2)
    for name in ("queue", "prefill", "decode", "duration"):
        assert await d.metric(f"v4serve_request_{name}_seconds_count") == 1, name
    assert await d.metric("v4serve_request_prompt_tokens_sum") == 3
    assert await d.metric("v4serve_request_generated_tokens_sum") == 10
    assert await d.metric("v4serve_prompt_tokens_total") == 3
    assert await d.metric("v4serve_cached_prompt_tokens_total") == 2
    assert await d.metric("v4serve_placements_total", reason="least-queued") == 1


async def test_how_choices_end(deploy: Deploy) -> None:
    async def counts() -> list[float]:
        return [await d.metric("v4serve_choices_total", reason=each) for each in ("stop", "length", "abort", "error")]

    d = await deploy(0, 1)
    await d.complete(PROMPT, max_tokens=2, n=2)
    assert await counts() == [0, 2, 0, 0]
    d.decode[0].hangs = True
    asked = asyncio.create_task(d.complete(PROMPT, n=3))
    await until(lambda: bool(d.decode[0].running), "it is being served")
    asked.cancel()
    await until(lambda: d.router.requests == 0, "it ended")
    assert await counts() == [0, 2, 3, 0]
    d.decode[0].hangs, d.decode[0].refuse_always = False, pb.INTERNAL
    assert (await d.complete(PROMPT)).status_code == 500
    await d.complete(PROMPT, bogus=1)  # refused before any worker is asked
    d.decode[0].refuse_always = pb.OVERLOADED
    assert (await d.complete(PROMPT, n=2)).status_code == 429
    assert await counts() == [0, 2, 3, 1]


def test_the_end_of_the_router_aborts_choices() -> None:
    metrics = Metrics()
    metrics.ended("chat", "cancelled", ("stop", None), answered=True)
    for reason, count in {"stop": 1, "length": 0, "abort": 1, "error": 0}.items():
        assert metrics.registry.get_sample_value("v4serve_choices_total", {"reason": reason}) == count


async def test_running_requests_and_their_tokens_are_exported(deploy: Deploy) -> None:
    d = await deploy(0, 1)
    d.decode[0].step_seconds = 0.002
    asked = asyncio.create_task(d.complete(PROMPT, max_tokens=100_000))
    await until(lambda: d.decode[0].tokens_sent > 5, "tokens come")
    assert await d.metric("v4serve_generated_tokens_total") > 0
    assert await d.metric("v4serve_prompt_tokens_total") == 3
    assert await d.metric("v4serve_requests_running") == 1
    assert await d.metric("v4serve_request_duration_seconds_count") == 0
    asked.cancel()
    await d.idle()
    await until(lambda: d.router.requests == 0, "it ended")
    assert await d.metric("v4serve_requests_running") == 0


async def test_every_outcome_of_a_request_exists_before_it_happens(deploy: Deploy) -> None:
    """Every error class is an outcome, so that no counter appears with the value 1."""
    d = await deploy(0, 1)
    known = {tuple(s.labels.values()) for s in next(iter(d.router.metrics.requests.collect())).samples}
    for reason in pb.Reason.values()[1:]:
        d.decode[0].refuse_always = reason
        assert (await d.complete(PROMPT)).status_code >= 400
    assert {tuple(s.labels.values()) for s in next(iter(d.router.metrics.requests.collect())).samples} == known


async def test_requests_that_get_no_token_by_the_services_fault(deploy: Deploy) -> None:
    name = "v4serve_requests_without_token_total"
    d = await deploy(0, 1)
    await d.complete(PROMPT, max_tokens=2)
    await d.complete(PROMPT, bogus=1)
    for reason, status, count in ((pb.OVERLOADED, 429, 0), (pb.DRAINING, 503, 1), (pb.INTERNAL, 500, 2)):
        d.decode[0].refuse_always = reason
        assert (await d.complete(PROMPT)).status_code == status
        assert await d.metric(name) == count


@pytest.mark.parametrize("stream", [False, True])
async def test_a_deadline_counts_unless_a_token_reached_the_client(deploy: Deploy, stream: bool) -> None:
    d = await deploy(0, 1, policy=Policy(request_timeout_seconds=1.5))
    d.decode[0].step_seconds = 0.01
    answer = await d.complete(PROMPT, max_tokens=100_000, stream=stream)
    assert "deadline_exceeded" in answer.text
    assert d.decode[0].tokens_sent > 0, "the router had tokens in either case"
    assert await d.metric("v4serve_requests_total", outcome="504") == 1
    assert await d.metric("v4serve_requests_without_token_total") == (0 if stream else 1)


async def test_a_prompt_is_counted_once_however_often_it_is_computed(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    for worker in d.decode:
        worker.fail_at = (3, pb.INTERNAL)
    await d.complete(PROMPT, max_tokens=5)
    assert await d.metric("v4serve_recomputations_total") >= 1
    assert await d.metric("v4serve_prompt_tokens_total") == 3
    assert await d.metric("v4serve_placements_total", reason="retry") >= 1
    assert await d.metric("v4serve_request_queue_seconds_count") == 1


async def test_the_estimated_time_to_the_first_token(deploy: Deploy) -> None:
    d = await deploy()
    await d.complete(prompt(1), max_tokens=2)
    assert await d.metric("v4serve_estimated_time_to_first_token_seconds_count") == 0, "nothing was measured yet"
    assert await d.metric("v4serve_time_to_first_token_error_ratio_count") == 0
    for number in (1, 2):
        await d.complete(prompt(1), max_tokens=2)
        assert await d.metric("v4serve_estimated_time_to_first_token_seconds_count") == number
        assert await d.metric("v4serve_time_to_first_token_error_ratio_count") == number
    assert await d.metric("v4serve_estimated_time_to_first_token_seconds_sum") > 0
    link = d.router.fleet.links[d.prefill[0].address]
    assert link.pace.seconds(1) is not None
    await d.prefill[0].kill()
    await until(lambda: not link.up, "it is gone")
    await d.prefill[0].restart()
    await d.wait_up()
    assert link.pace.seconds(1) is None, "another process may be slower"


async def test_prefixes_that_are_cached_elsewhere(deploy: Deploy) -> None:
    d = await deploy(2, 1)
    first, second = (d.router.fleet.links[worker.address] for worker in d.prefill)
    for worker in d.prefill:
        worker.remembers = True
    await d.complete(prompt(3), max_tokens=2)
    assert await d.metric("v4serve_prefix_elsewhere_tokens_total") == 0
    here = first if len(first.prefixes) else second
    here._sent_tokens = 1_000_000  # its queue outweighs its cached prefix
    await d.complete(prompt(3), max_tokens=2)
    assert await d.metric("v4serve_prefix_elsewhere_tokens_total") == 3 * BLOCK


async def test_caches_that_wait_for_room(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    d.decode[0].refuse_always = pb.OVERLOADED
    d.decode[0].tails = 0
    asked = asyncio.create_task(d.complete(PROMPT, max_tokens=5))
    await until(lambda: len(d.router.fleet.room_queue) == 1, "the cache waits")
    assert await d.metric("v4serve_requests_waiting_for_room") == 1
    d.decode[0].refuse_always, d.decode[0].tails = None, 1000
    asked.cancel()
    await until(lambda: not d.router.fleet.room_queue, "nobody waits")
    assert await d.metric("v4serve_requests_waiting_for_room") == 0


async def test_tokens_placed_on_each_worker(deploy: Deploy) -> None:
    d = await deploy()
    await d.complete(PROMPT, max_tokens=5, n=2)
    name = "v4serve_placed_tokens_total"
    assert await d.metric(name, worker=d.prefill[0].address, role="prefill") == 3
    assert await d.metric(name, worker=d.decode[0].address, role="decode") == 6


async def test_a_worker_that_is_no_longer_listed_leaves_no_sample(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    (p, w) = d.workers
    names = [f"v4serve_{name}" for name in ("placed_tokens_total", "worker_up", "worker_routable")]
    for _ in range(3):
        fresh = await FakeWorker("decode", d.prefill[0].caches).start()
        d.discover(p.endpoint(), w.endpoint(), fresh.endpoint())
        link = d.router.fleet.links[fresh.address]
        await d.wait_up()
        await d.complete(PROMPT, max_tokens=2)
        for name in names:
            assert (fresh.address, "decode") in await names_of(d, name)
        d.discover(p.endpoint(), w.endpoint())
        await until(partial(is_down, link), "its stream is closed")
        await fresh.kill()
        for name in names:
            assert await names_of(d, name) == {(p.address, "prefill"), (w.address, "decode")}


async def test_workers_as_the_router_sees_them(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    (p, w) = d.workers
    for name in ("up", "routable"):
        assert await d.metric(f"v4serve_worker_{name}", worker=p.address, role="prefill") == 1
    d.discover(p.endpoint(leaving=True), w.endpoint())
    assert await d.metric("v4serve_worker_up", worker=p.address) == 1
    assert await d.metric("v4serve_worker_routable", worker=p.address) == 0
    await w.kill()
    await until(lambda: not d.router.fleet.links[w.address].up, "it is gone")
    assert await d.metric("v4serve_worker_up", worker=w.address, role="decode") == 0


async def test_probes(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    assert await d.metric("v4serve_probe_seconds_count") == 2
    assert await d.metric("v4serve_probe_failures_total") == 0
    fresh = await FakeWorker("decode", d.prefill[0].caches).start()
    fresh.refuse_always = pb.INTERNAL
    d.discover(*(worker.endpoint() for worker in (*d.workers, fresh)))
    await until(lambda: "INTERNAL" in d.router.fleet.links[fresh.address].error, "the probe failed")
    assert await d.metric("v4serve_probe_failures_total", role="decode") >= 1
    assert await d.metric("v4serve_probe_failures_total", role="prefill") == 0
    await fresh.kill()
