"""Workers that come, leave and return while requests run."""

import asyncio

from tests.router.conftest import Deploy, Deployment, until
from tests.router.fake_worker import FakeWorker, expected

PROMPT = [10, 20, 30]


async def served_by(d: Deployment, count: int = 6) -> set[str]:
    """Workers that so many requests went to."""
    used: set[str] = set()
    for _ in range(count):
        answer = await d.complete(PROMPT, max_tokens=3, return_token_ids=True)
        assert answer.json()["choices"][0]["token_ids"] == expected(PROMPT, 3), answer.text
        route = dict(part.strip().split("=", 1) for part in answer.headers["x-v4serve-route"].split(";"))
        used |= {route["prefill"], route["decode"]}
    return used


def decoding(d: Deployment) -> FakeWorker:
    """The decode worker that a request runs on."""
    (worker,) = (w for w in d.decode if any(not request.startswith("probe") for request, _ in w.running))
    return worker


async def test_workers_that_are_not_ready_or_leave_get_nothing_new(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    (p, q), (a, b) = d.prefill, d.decode
    d.discover(p.endpoint(ready=False), q.endpoint(), a.endpoint(), b.endpoint(leaving=True))
    assert await served_by(d) == {q.address, a.address}
    d.discover(*(w.endpoint() for w in d.workers))
    assert await served_by(d) == {w.address for w in d.workers}


async def test_a_stream_goes_on_where_it_runs_though_the_worker_leaves_and_is_listed_no_more(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    for worker in d.decode:
        worker.step_seconds = 0.005
    asked = asyncio.create_task(d.complete(PROMPT, max_tokens=60, return_token_ids=True))
    await until(lambda: any(w.tokens_sent > 2 and w.running for w in d.decode), "decode runs")
    leaving = decoding(d)
    (other,) = (w for w in d.decode if w is not leaving)
    link = d.router.fleet.links[leaving.address]
    d.discover(d.prefill[0].endpoint(), other.endpoint(), leaving.endpoint(leaving=True))
    await served_by(d, 2)
    d.discover(d.prefill[0].endpoint(), other.endpoint())
    assert leaving.address not in d.router.fleet.links
    answer = await asked
    assert answer.json()["choices"][0]["token_ids"] == expected(PROMPT, 60)
    assert await d.metric("v4serve_migrations_total") == 0
    await until(lambda: not link.up, "the connection ends with the stream")
    assert await served_by(d, 2) == {d.prefill[0].address, other.address}


async def test_a_worker_that_is_listed_no_more_and_idle_is_left_at_once(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    link = d.router.fleet.links[d.decode[0].address]
    d.discover(d.prefill[0].endpoint(), d.decode[1].endpoint())
    await until(lambda: not link.up, "its stream is closed")


async def test_new_workers_are_proven_before_they_get_requests(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    fresh = await FakeWorker("decode", d.prefill[0].caches).start()
    try:
        fresh.may_adopt.clear()
        d.discover(*(w.endpoint() for w in (*d.workers, fresh)))
        await until(lambda: bool(fresh.running), "it is asked for a token")
        assert await served_by(d) == {w.address for w in d.workers}
        fresh.may_adopt.set()
        await d.wait_up()
        assert fresh.address in await served_by(d)
    finally:
        await fresh.kill()


async def test_another_pod_at_the_same_address_is_another_worker(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    p, w = d.prefill[0], d.decode[0]
    d.discover(p.endpoint(uid="p"), w.endpoint(uid="1"))
    await d.wait_up()
    first = d.router.fleet.links[w.address]
    await w.kill()
    w.may_adopt.clear()
    await w.restart()
    d.discover(p.endpoint(uid="p"), w.endpoint(uid="1", leaving=True), w.endpoint(uid="2"))
    second = d.router.fleet.links[w.address]
    assert second is not first
    assert not second.probed
    await until(lambda: second.open, "the new one is connected")
    assert not second.usable
    w.may_adopt.set()
    await d.wait_up()
    assert await served_by(d, 2) == {p.address, w.address}


async def test_caches_move_within_one_revision(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    d.discover(*(w.endpoint(revision="ab"[i]) for pool in (d.prefill, d.decode) for i, w in enumerate(pool)))
    assert d.router.fleet.pairs() == {("a", "one"), ("b", "one")}
    await served_by(d)
    for p, w in zip(d.prefill, d.decode, strict=True):
        assert {start.source.address for start in w.starts} == {p.address}


async def test_a_revision_whose_prefill_leaves_gets_no_new_requests(deploy: Deploy) -> None:
    """Its decode workers finish what was begun; prompts go to the pair that stays."""
    d = await deploy(2, 2)
    (p, q), (a, b) = d.prefill, d.decode
    d.discover(
        p.endpoint(revision="old", leaving=True), q.endpoint(revision="new"),
        a.endpoint(revision="old"), b.endpoint(revision="new"),
    )  # fmt: skip
    assert await served_by(d) == {q.address, b.address}


async def test_a_cache_of_a_leaving_prefill_worker_is_still_taken_over(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    p = d.prefill[0]
    p.may_prefill.clear()
    asked = asyncio.create_task(d.complete(PROMPT, max_tokens=9, return_token_ids=True))
    await until(lambda: any(w.running for w in d.decode), "it was begun")
    d.discover(p.endpoint(leaving=True), *(w.endpoint() for w in d.decode))
    p.may_prefill.set()
    answer = await asked
    assert answer.json()["choices"][0]["token_ids"] == expected(PROMPT, 9)
    assert await d.metric("v4serve_recomputations_total") == 0
