"""Workers that appear, leave and return while requests run, and the queue for room."""

import asyncio
from collections.abc import Collection
from typing import Any

from tests.router.conftest import Deploy, Deployment, until
from tests.router.fake_worker import FakeWorker, expected
from v4_core.v1 import worker_pb2 as pb
from v4_router.endpoints import WorkerEndpoint
from v4_router.fleet import Fleet, RoomRequest
from v4_router.policy import Policy
from v4_router.workers import WorkerLink

PROMPT = [10, 20, 30]


async def served_by(d: Deployment, count: int = 6) -> set[str]:
    """Returns the workers that served so many requests."""
    used: set[str] = set()
    for _ in range(count):
        answer = await d.complete(PROMPT, max_tokens=3, return_token_ids=True)
        assert answer.json()["choices"][0]["token_ids"] == expected(PROMPT, 3), answer.text
        route = dict(part.strip().split("=", 1) for part in answer.headers["x-v4serve-route"].split(";"))
        used |= {route["prefill"], route["decode"]}
    return used


def decoding(d: Deployment) -> FakeWorker:
    """Returns the decode worker on which a request runs."""
    (worker,) = (w for w in d.decode if any(not request.startswith("probe") for request, _ in w.running))
    return worker


async def test_workers_that_are_not_ready_or_leave_get_nothing_new(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    (p, q), (a, b) = d.prefill, d.decode
    d.discover(p.endpoint(ready=False), q.endpoint(), a.endpoint(), b.endpoint(leaving=True))
    assert await served_by(d) == {q.address, a.address}
    d.discover(*(w.endpoint() for w in d.workers))
    assert await served_by(d) == {w.address for w in d.workers}


async def test_a_stream_continues_on_a_worker_that_leaves_and_is_no_longer_listed(deploy: Deploy) -> None:
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


async def test_an_idle_worker_that_is_no_longer_listed_is_disconnected_at_once(deploy: Deploy) -> None:
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
    """Its decode workers finish their requests; new prompts go to the pair that stays."""
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


KIND = ("", "f")


class Waiter:
    """A cache that waits for room, and the calls that it received."""

    def __init__(self, fleet: Fleet, *, tokens: int = 300, avoid: Collection[str] = ()) -> None:
        self.fleet = fleet
        self.granted: list[str] = []
        self.given_up = 0
        fleet.wait_for_room(self, KIND, RoomRequest(tokens, 1, avoid, self._grant, self._give_up))

    def _grant(self, worker: str) -> None:
        self.granted.append(worker)
        start = pb.Start(request=str(id(self)), phase=pb.DECODE, prompt_ids=bytes(4 * 300), n=1)
        self.fleet.links[worker].start(start, 0, lambda event: None)

    def _give_up(self) -> None:
        self.given_up += 1


def report(link: WorkerLink, **load: Any) -> None:
    """Lets the worker report this load."""
    link._report(pb.Load(**load))
    link.on_change(link)


def fleet_of(*addresses: str, **load: Any) -> tuple[Fleet, list[WorkerLink]]:
    """Returns a fleet of decode workers that are up and report this load."""
    fleet = Fleet(Policy(), 1.0)
    fleet.update(WorkerEndpoint(address, "decode") for address in addresses)
    for link in fleet.decode:
        link.up = link.probed = True
        link.info = pb.WorkerInfo(fingerprint="f")
        report(link, **load)
    return fleet, fleet.decode


def test_a_report_serves_as_many_waiters_as_it_has_room_for() -> None:
    """Each needs three block slots: two for its 300 tokens, and one to continue in."""
    fleet, (link,) = fleet_of("a", slots_free=0, tails_total=9)
    waiters = [Waiter(fleet) for _ in range(4)]
    report(link, slots_free=5, slots_evictable=2, tails_total=9)
    assert [waiter.granted for waiter in waiters] == [["a"], ["a"], [], []]
    report(link, slots_free=9, tails_total=9, tails_used=8)
    assert [waiter.granted for waiter in waiters] == [["a"], ["a"], ["a"], []], "one tail is left"


def test_a_waiter_takes_another_worker_that_has_room_at_once() -> None:
    fleet, (full, free) = fleet_of("a", "b", slots_free=9, tails_total=9)
    report(full, slots_free=0, tails_total=9)
    assert Waiter(fleet).granted == [free.address]


def test_a_worker_that_refused_is_offered_nothing_until_it_reports_again() -> None:
    """Its last report may be older than the refusal, and messages repeat it; an offer could be refused for ever."""
    fleet, (link,) = fleet_of("a", slots_free=9, tails_total=9)
    link._refused = True
    waiter = Waiter(fleet)
    assert waiter.granted == []
    report(link, slots_free=9, tails_total=9)
    assert waiter.granted == [], "the same load again says nothing new"
    report(link, slots_free=8, tails_total=9)
    assert waiter.granted == ["a"]


def test_a_worker_that_refused_is_offered_again_what_it_says_when_asked() -> None:
    fleet, (link,) = fleet_of("a", slots_free=9, tails_total=9)
    link._refused = True
    waiter = Waiter(fleet)
    link._report(link.load, fresh=True)
    link.on_change(link)
    assert waiter.granted == ["a"]


def test_the_next_waiter_gets_the_room_that_the_first_one_leaves() -> None:
    fleet, _ = fleet_of("a", slots_free=3, tails_total=9)
    large, small = Waiter(fleet, tokens=10_000), Waiter(fleet)
    assert small.granted == [], "first come, first served"
    fleet.stop_waiting(large, keep_place=True)
    assert small.granted == ["a"]


def test_waiters_give_up_when_no_worker_is_left_for_them() -> None:
    fleet, (first, second) = fleet_of("a", "b", tails_total=9)
    patient, picky = Waiter(fleet), Waiter(fleet, avoid={"b"})
    first.load.draining = True
    first.on_change(first)
    assert (patient.given_up, picky.given_up) == (0, 1)
    second.up = False
    second.on_change(second)
    assert patient.given_up == 1
    assert Waiter(fleet).given_up == 1, "as does one that comes later"


def test_waiters_give_up_when_the_last_worker_is_no_longer_listed() -> None:
    fleet, _ = fleet_of("a", tails_total=9)
    waiter = Waiter(fleet)
    fleet.update([])
    assert waiter.given_up == 1
