"""Requests while workers refuse, fail, vanish or repeat messages, and while clients disconnect.

Every answer has the right tokens or the right status, and nothing is left on any worker.
"""

import asyncio
import json
import random
from typing import Any

import httpx
import openai
import pytest

from tests.router.conftest import MODEL, Deploy, Deployment, until
from tests.router.fake_worker import FakeWorker, expected
from v4_core.v1 import worker_pb2 as pb
from v4_router.policy import Policy

PROMPT = [10, 20, 30]


def slow(d: Deployment, seconds: float = 0.005) -> None:
    for worker in d.decode:
        worker.step_seconds = seconds


def used(workers: list[FakeWorker]) -> FakeWorker:
    """Returns the one worker that got a leg."""
    (worker,) = (w for w in workers if w.starts)
    return worker


async def waiting(d: Deployment, count: int) -> None:
    """Waits until so many caches wait for room."""
    await until(lambda: len(d.router.fleet.room_queue) == count, f"{count} wait")


async def completed(response: "asyncio.Task[httpx.Response]", tokens: int, n: int = 1) -> None:
    """Checks that every choice of the answer has the right tokens."""
    answer = await response
    assert answer.status_code == 200, answer.text
    assert [c["token_ids"] for c in answer.json()["choices"]] == [expected(PROMPT, tokens, c) for c in range(n)]


def ask(d: Deployment, tokens: int, **fields: Any) -> "asyncio.Task[httpx.Response]":
    return asyncio.create_task(d.complete(PROMPT, max_tokens=tokens, return_token_ids=True, **fields))


async def test_prefill_killed_before_the_first_token(deploy: Deploy) -> None:
    d = await deploy(2, 1)
    for worker in d.prefill:
        worker.may_prefill.clear()
    response = ask(d, 6, n=2)
    await until(lambda: bool(d.decode[0].running), "decode waits for prefill")
    victim = used(d.prefill)
    for worker in d.prefill:
        worker.may_prefill.set() if worker is not victim else None
    await victim.kill()
    await completed(response, 6, 2)
    assert await d.metric("v4serve_retries_total") >= 1  # the decode worker may notice the loss first
    assert await d.metric("v4serve_recomputations_total") >= 1
    assert await d.metric("v4serve_migrations_total") == 0
    await d.idle()


async def test_the_only_prefill_killed_is_replaced_by_decode(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    d.prefill[0].may_prefill.clear()
    response = ask(d, 6)
    await until(lambda: bool(d.decode[0].running), "decode waits for prefill")
    await d.prefill[0].kill()
    await completed(response, 6)
    assert d.decode[0].starts[-1].phase == pb.WHOLE
    assert (await response).headers["x-v4serve-route"].endswith("reason=retry")
    await d.idle()


async def test_decode_killed_before_adoption_pulls_again_elsewhere(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    for worker in d.decode:
        worker.may_adopt.clear()
    response = ask(d, 6)
    await until(lambda: any(w.running for w in d.decode), "decode waits to adopt")
    victim = used(d.decode)
    for worker in d.decode:
        worker.may_adopt.set() if worker is not victim else None
    await victim.kill()
    await completed(response, 6)
    assert len(d.prefill[0].starts) == 1  # computed once
    other = used([w for w in d.decode if w is not victim])
    assert (other.starts[0].attempt, other.starts[0].source) == (1, victim.starts[0].source)
    assert await d.metric("v4serve_recomputations_total") == 0
    await d.idle()


@pytest.mark.parametrize("n", [1, 3])
async def test_decode_killed_after_adoption_is_continued_elsewhere(deploy: Deploy, n: int) -> None:
    d = await deploy(2, 2)
    slow(d)
    response = ask(d, 60, n=n)
    await until(lambda: any(w.running and w.starts for w in d.decode), "decode runs")
    victim = used(d.decode)
    victim.tokens_sent = 0
    await until(lambda: victim.tokens_sent >= 10, "decode sent tokens")
    await victim.kill()
    await completed(response, 60, n)
    assert await d.metric("v4serve_migrations_total") == n
    moved = [s for w in d.decode if w is not victim for s in w.starts]
    assert sorted(s.first_choice for s in moved) == list(range(n))
    assert all(s.n == 1 and s.output_ids and ".c" in s.request for s in moved)
    await d.idle()


async def test_a_stream_survives_decode_after_decode(deploy: Deploy) -> None:
    """The stream continues although its only decode worker dies and restarts three times."""
    d = await deploy(1, 1)
    slow(d, 0.002)
    stream = await d.openai.completions.create(
        model=MODEL, prompt=PROMPT, max_tokens=150, stream=True, extra_body={"return_token_ids": True}
    )
    ids: list[int] = []
    kills = 0
    async for chunk in stream:
        ids += chunk.choices[0].token_ids
        if len(ids) > 30 * (kills + 1) and kills < 3:
            kills += 1
            await d.decode[0].kill()
            await d.decode[0].restart()
    assert ids == expected(PROMPT, 150)
    assert await d.metric("v4serve_migrations_total") == 3
    await d.idle()


async def test_a_choice_given_back_is_continued_elsewhere(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    for worker in d.decode:
        worker.migrate_at = 5
    response = ask(d, 9, n=2)
    await until(lambda: all(w.starts for w in d.decode), "both decode workers were used")
    for worker in d.decode:
        worker.migrate_at = None
    await completed(response, 9, 2)
    assert await d.metric("v4serve_migrations_total") >= 2
    await d.idle()


@pytest.mark.parametrize("n", [1, 3])
async def test_a_drain_hands_every_choice_over(deploy: Deploy, n: int) -> None:
    """At the end of its drain, a worker refuses new legs and gives every running choice back."""
    d = await deploy(2, 2)
    slow(d)
    response = ask(d, 60, n=n)
    await until(lambda: any(w.running and w.starts for w in d.decode), "decode runs")
    victim = used(d.decode)
    victim.tokens_sent = 0
    await until(lambda: victim.tokens_sent >= 10, "decode sent tokens")
    victim.draining = True
    victim.hands_back.set()
    await completed(response, 60, n)
    assert await d.metric("v4serve_migrations_total") == n
    moved = [s for w in d.decode if w is not victim for s in w.starts]
    assert sorted(s.first_choice for s in moved) == list(range(n))
    assert not [c for c in victim.cancels if not c.request.startswith("probe")], "nothing is left there to cancel"
    await d.idle()


@pytest.mark.parametrize("n", [1, 2])
async def test_choices_that_no_worker_takes_over_wait_for_a_new_worker(deploy: Deploy, n: int) -> None:
    d = await deploy(1, 1)
    slow(d)
    response = ask(d, 60, n=n)
    victim = d.decode[0]
    await until(lambda: victim.tokens_sent >= 10, "decode sent tokens")
    victim.draining = True
    victim.hands_back.set()
    await until(lambda: victim.idle, "it gave back what ran")
    await victim.kill()
    victim.draining = False
    victim.hands_back.clear()
    await victim.restart()
    await completed(response, 60, n)
    await d.idle()


async def test_choices_that_no_worker_takes_over_end_with_one_error(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("v4_router.advance.PATIENCE_SECONDS", 0.3)
    d = await deploy(1, 1)
    slow(d)
    victim = d.decode[0]
    lines: list[str] = []

    async def stream() -> None:
        body = {"prompt": PROMPT, "max_tokens": 1000, "n": 2, "stream": True}
        async with d.http.stream("POST", "/v1/completions", json=body) as response:
            async for line in response.aiter_lines():
                lines.append(line)

    streaming = asyncio.create_task(stream())
    await until(lambda: len(lines) > 20, "it streams")
    victim.draining = True
    victim.hands_back.set()
    await asyncio.wait_for(streaming, 10)
    events = [json.loads(line[6:]) for line in lines if line]
    assert [("error" in event) for event in events] == [False] * (len(events) - 1) + [True]
    assert events[-1]["error"]["type"] == "service_unavailable_error"
    await d.idle()


async def test_another_fingerprint_does_not_continue_a_stream(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tokens would not continue the stream; a worker with the same fingerprint does."""
    d = await deploy(1, 2)
    slow(d)
    response = ask(d, 60)
    await until(lambda: any(w.tokens_sent >= 10 for w in d.decode), "decode runs")
    victim = next(w for w in d.decode if any(not r.startswith("probe") for r, _ in w.running))
    other = next(w for w in d.decode if w is not victim)
    await other.kill()
    other.fingerprint = "two"
    await other.restart()
    await d.wait_up()
    await victim.kill()
    await until(lambda: bool(d.router.fleet.links[victim.address].error), "the loss is seen")
    assert not [s for s in other.starts if not s.request.startswith("probe")]
    await victim.restart()
    await completed(response, 60)
    assert not [s for s in other.starts if not s.request.startswith("probe")]


async def test_duplicated_events_change_nothing(deploy: Deploy) -> None:
    d = await deploy()
    for worker in d.workers:
        worker.duplicates = True
    await completed(ask(d, 20, n=3), 20, 3)
    await d.idle()


@pytest.mark.parametrize("repeats", [1, 3])
async def test_only_the_new_tokens_of_a_message_are_emitted(deploy: Deploy, repeats: int) -> None:
    """The first tokens of a message may be known from prefill, or from a worker that was lost."""
    d = await deploy()
    for worker in d.workers:
        worker.repeats = repeats
    answer = await ask(d, 20, n=2, logprobs=2)
    assert answer.status_code == 200, answer.text
    for number, choice in enumerate(answer.json()["choices"]):
        assert choice["token_ids"] == expected(PROMPT, 20, number)
        assert len(choice["logprobs"]["token_logprobs"]) == 20
    await d.idle()


async def test_decode_tokens_may_arrive_before_prefills_first_token(deploy: Deploy) -> None:
    """The streams of two workers are not ordered: decode's tokens wait for prefill's."""
    d = await deploy()
    d.prefill[0].first_tokens_late = 0.05
    await completed(ask(d, 6, n=2), 6, 2)
    await d.idle()


async def test_a_gap_is_an_internal_error(deploy: Deploy) -> None:
    d = await deploy(0, 1)
    d.decode[0].gap_at = 3
    response = await ask(d, 9)
    assert response.status_code == 500
    assert "missing" in response.json()["error"]["message"]
    await d.idle()


REASONS = [
    (pb.INVALID, 400, "invalid_request_error"),
    (pb.OVERLOADED, 429, "rate_limit_error"),
    (pb.DRAINING, 503, "service_unavailable_error"),
    (pb.TRANSFER, 503, "service_unavailable_error"),
    (pb.DEADLINE, 504, "timeout_error"),
    (pb.INTERNAL, 500, "internal_error"),
    (pb.UNKNOWN_REASON, 500, "internal_error"),
]


@pytest.mark.parametrize(
    ("reason", "status", "kind", "everywhere"),
    [(*r, True) for r in REASONS]
    + [(*r, False) for r in REASONS if r[0] != pb.OVERLOADED],  # a request waits for full decode workers
)
async def test_every_reason_has_its_status(
    deploy: Deploy, reason: pb.Reason, status: int, kind: str, everywhere: bool
) -> None:
    d = await deploy(2, 2)
    for worker in d.workers if everywhere else d.decode:
        worker.refuse_always = reason
    for worker in d.prefill:
        worker.may_prefill.clear()  # so that decode refuses before the first token
    response = await d.complete(PROMPT, max_tokens=5, stream=True)
    assert response.status_code == status
    assert response.json()["error"]["type"] == kind
    assert ("retry-after" in response.headers) == (status in (429, 503))
    await d.idle()
    assert await d.metric("v4serve_requests_total", outcome=str(status)) == 1


@pytest.mark.parametrize("reason", [pb.OVERLOADED, pb.DRAINING, pb.TRANSFER, pb.INTERNAL, pb.UNKNOWN_REASON])
@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_one_refusal_is_placed_elsewhere(deploy: Deploy, reason: pb.Reason, role: str) -> None:
    d = await deploy(2, 2)
    refused: list[FakeWorker] = d.prefill if role == "prefill" else d.decode
    for worker in refused:
        worker.refusals = [reason]
    await completed(ask(d, 6), 6)
    waited = (role, reason) == ("decode", pb.OVERLOADED)  # waiting for room is no retry
    assert bool(await d.metric("v4serve_retries_total", role=role)) != waited
    await d.idle()


async def test_the_first_token_may_be_the_last(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    await completed(ask(d, 1), 1)
    assert all(s.request.startswith("probe") for s in d.decode[0].starts), "no decode leg for one token"
    await d.idle()


@pytest.mark.usefixtures("short_silence")
async def test_room_goes_to_the_request_that_waited_longest(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    d.decode[0].tails = 0
    d.decode[0].refuse_always = pb.OVERLOADED
    asked = []
    for _ in range(4):
        asked.append(ask(d, 3))
        count = len(asked)
        await waiting(d, count)
    d.decode[0].refuse_always = None
    d.decode[0].tails = 1
    order: list[int] = []
    for i, task in enumerate(asked):
        task.add_done_callback(lambda _, i=i: order.append(i))  # type: ignore[misc]
    for task in asked:
        await completed(task, 3)
    assert order == [0, 1, 2, 3]
    assert not d.router.fleet.room_queue
    await d.idle()


@pytest.mark.usefixtures("short_silence")
async def test_a_waiter_whose_lease_expired_does_not_block_the_queue(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    d.decode[0].tails = 0
    d.decode[0].refuse_always = pb.OVERLOADED
    first = ask(d, 3)
    await waiting(d, 1)
    second = ask(d, 3)
    await waiting(d, 2)
    d.prefill[0].hangs = True
    d.prefill[0].expire(d.prefill[0].starts[0].request)
    await until(lambda: len(d.prefill[0].starts) == 3, "the first is computed again")
    assert len(d.router.fleet.room_queue) == 1
    d.decode[0].refuse_always = None
    d.decode[0].tails = 1
    await completed(second, 3)
    assert not first.done()
    assert await d.metric("v4serve_retries_total") == 0, "no worker is to blame"
    first.cancel()
    await d.idle()


@pytest.mark.usefixtures("short_silence")
async def test_a_waiter_is_placed_again_when_the_last_decode_worker_of_its_kind_leaves(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    d.discover(*(w.endpoint(revision="ab"[i]) for pool in (d.prefill, d.decode) for i, w in enumerate(pool)))
    for worker in d.decode:
        worker.tails = 0
        worker.refuse_always = pb.OVERLOADED
    response = ask(d, 3)
    await waiting(d, 1)
    (full,) = (w for w in d.decode if w.starts)
    (other,) = (w for w in d.decode if w is not full)
    other.tails, other.refuse_always = 1, None
    await full.kill()
    await completed(response, 3)
    assert other.starts
    await d.idle()


@pytest.mark.usefixtures("short_silence")
async def test_waiters_of_one_revision_do_not_block_those_of_another(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    d.discover(*(w.endpoint(revision="ab"[i]) for pool in (d.prefill, d.decode) for i, w in enumerate(pool)))
    for worker in d.decode:
        worker.tails = 0
        worker.refuse_always = pb.OVERLOADED
    responses = []
    for count in (1, 2):
        responses.append(ask(d, 3))
        await waiting(d, count)
    await until(lambda: all(w.starts for w in d.decode), "one of each revision waits")
    d.decode[1].tails, d.decode[1].refuse_always = 1, None
    done, _ = await asyncio.wait(responses, timeout=10, return_when=asyncio.FIRST_COMPLETED)
    assert len(done) == 1
    d.decode[0].tails, d.decode[0].refuse_always = 1, None
    for response in responses:
        await completed(response, 3)
    await d.idle()


@pytest.mark.usefixtures("short_silence")
async def test_a_cache_waits_in_prefills_pool_until_decode_has_room(deploy: Deploy) -> None:
    """There are more refusals than tries: a refusal by a full decode worker is not a try."""
    d = await deploy(1, 2)
    for worker in d.decode:
        worker.refusals = [pb.OVERLOADED] * 5
    await completed(ask(d, 6), 6)
    assert len([s for s in d.prefill[0].starts if not s.request.startswith("probe")]) == 1, "computed once"
    await d.idle()


@pytest.mark.parametrize("reason", [pb.INVALID, pb.DEADLINE])
async def test_failures_after_the_first_token_are_one_event(deploy: Deploy, reason: pb.Reason) -> None:
    d = await deploy()
    d.decode[0].fail_at = (5, reason)
    async with d.http.stream(
        "POST", "/v1/completions", json={"prompt": PROMPT, "max_tokens": 9, "stream": True}
    ) as response:
        assert response.status_code == 200
        lines = [line async for line in response.aiter_lines() if line]
    assert [("error" in json.loads(line[6:])) for line in lines] == [False] * (len(lines) - 1) + [True]
    stream = await d.openai.completions.create(model=MODEL, prompt=PROMPT, max_tokens=9, stream=True)
    with pytest.raises(openai.APIError, match="failed on purpose"):
        async for _ in stream:
            pass
    await d.idle()


async def test_no_worker_at_all(deploy: Deploy) -> None:
    d = await deploy(1, 1, ready=False)
    for worker in d.workers:
        await worker.kill()
    await until(lambda: not any(link.up for link in d.router.fleet.links.values()), "all workers are down")
    response = await d.complete(PROMPT)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_worker")
    assert (await d.http.get("/ready")).status_code == 503
    assert (await d.http.get("/v1/models")).json()["data"][0]["max_model_len"] is None


async def test_ready_only_after_a_probe_passed_through_a_pair(deploy: Deploy) -> None:
    d = await deploy(1, 1, ready=False)
    d.decode[0].may_adopt.clear()
    await until(lambda: bool(d.decode[0].running), "the probe runs")
    assert (await d.http.get("/health")).status_code == 200
    assert (await d.http.get("/ready")).status_code == 503
    d.decode[0].refusals = [pb.OVERLOADED] * 2  # of the next probes
    await d.decode[0].kill()
    await d.decode[0].restart()
    d.decode[0].may_adopt.set()
    await until(lambda: d.router.ready, "the probe came through")
    assert (await d.http.get("/ready")).status_code == 200
    legs = [s for s in d.decode[0].starts if s.request.startswith("probe")]
    assert legs[-1].phase == pb.DECODE
    await d.decode[0].kill()
    await until(lambda: not d.router.ready, "not ready without decode")


async def test_a_restarted_worker_is_used_again(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    await d.prefill[0].kill()
    await until(lambda: not d.router.fleet.prefill[0].up, "the loss is seen")
    await d.prefill[0].restart()
    await d.wait_up()
    await completed(ask(d, 4), 4)
    assert d.prefill[0].starts


@pytest.mark.usefixtures("short_silence")
async def test_a_draining_worker_gets_nothing_new(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    d.decode[0].draining = True
    link = d.router.fleet.links[d.decode[0].address]
    await until(lambda: not link.usable, "the router hears of it though nothing runs there")
    for _ in range(4):
        await completed(ask(d, 3), 3)
    assert not d.decode[0].starts


async def test_a_worker_of_the_wrong_role_is_not_used(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    await d.decode[0].kill()
    d.decode[0].role = "prefill"
    await d.decode[0].restart()
    await completed(ask(d, 3), 3)
    assert not d.router.fleet.decode[0].up


async def test_pairs_have_one_fingerprint(deploy: Deploy) -> None:
    d = await deploy(2, 2, ready=False)
    d.prefill[0].fingerprint = d.decode[1].fingerprint = "two"
    for worker in (d.prefill[0], d.decode[1]):
        await worker.kill()
        await worker.restart()
    await until(lambda: {link.info.fingerprint for link in d.router.fleet.prefill} == {"one", "two"}, "restarted")
    await d.wait_up()
    for _ in range(6):
        await completed(ask(d, 4), 4)
    for worker in d.decode:
        sources = {
            s.source.address for s in worker.starts if s.phase == pb.DECODE and not s.request.startswith("probe")
        }
        assert sources <= {p.address for p in d.prefill if p.fingerprint == worker.fingerprint}


@pytest.mark.parametrize("stream", [False, True])
async def test_the_deadline(deploy: Deploy, stream: bool) -> None:
    d = await deploy(1, 1, policy=Policy(request_timeout_seconds=0.3))
    d.prefill[0].may_prefill.clear()
    response = await d.complete(PROMPT, stream=stream)
    assert (response.status_code, response.json()["error"]["type"]) == (504, "timeout_error")
    await d.idle()
    assert d.prefill[0].starts[-1].deadline_ms <= 300


@pytest.mark.parametrize("path", ["prefill", "adopt", "run"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_frees_everything(deploy: Deploy, path: str, stream: bool) -> None:
    d = await deploy(1, 1)
    slow(d)
    if path == "prefill":
        d.prefill[0].may_prefill.clear()
    if path == "adopt":
        d.decode[0].may_adopt.clear()
    response = asyncio.create_task(d.complete(PROMPT, max_tokens=10_000, stream=stream))
    await until(lambda: bool(d.decode[0].running), "decode was told")
    response.cancel()
    await d.idle()
    assert d.decode[0].cancels
    assert await d.metric("v4serve_requests_total", outcome="client_gone") == 1


async def test_clients_that_leave_at_random_moments(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    slow(d, 0.001)
    chance = random.Random(5)

    async def one(number: int) -> None:
        tokens = chance.randrange(1, 60)
        task = ask(d, tokens, n=chance.randrange(1, 4), stream=chance.random() < 0.5)
        await asyncio.wait([task], timeout=chance.random() * 0.15)
        if not task.done():
            task.cancel()

    await asyncio.gather(*(one(i) for i in range(40)))
    await d.idle()
    await completed(ask(d, 5), 5)
    assert all(not link.legs for link in d.router.fleet.links.values())


async def test_workers_that_die_and_return_while_many_clients_come_and_go(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    slow(d, 0.002)
    chance = random.Random(7)
    done = asyncio.Event()

    async def one(number: int) -> None:
        prompt = [10 + number, 20, 30]
        tokens, n = chance.randrange(1, 80), chance.randrange(1, 3)
        await asyncio.sleep(chance.random())
        task = asyncio.create_task(d.complete(prompt, max_tokens=tokens, n=n, return_token_ids=True))
        if chance.random() < 0.3:
            await asyncio.wait([task], timeout=chance.random() * 0.2)
            task.cancel()
            return
        answer = await task
        assert answer.status_code == 200, answer.text
        assert [c["token_ids"] for c in answer.json()["choices"]] == [expected(prompt, tokens, c) for c in range(n)]

    async def reaper() -> None:
        """Restarts one worker of each role at a time, so that another one is always up."""
        while not done.is_set():
            for victim in (chance.choice(d.prefill), chance.choice(d.decode)):
                await victim.kill()
                await asyncio.sleep(0.05)
                await victim.restart()
                await d.wait_up()

    killing = asyncio.create_task(reaper())
    await asyncio.gather(*(one(i) for i in range(50)))
    done.set()
    await killing
    await d.idle()
    assert await d.metric("v4serve_migrations_total") > 0
    assert all(not link.legs for link in d.router.fleet.links.values())


async def test_a_choice_that_no_worker_can_continue_leaves_no_leg_behind(deploy: Deploy) -> None:
    d = await deploy(0, 1)
    d.decode[0].hands_back.set()
    response = await d.complete(PROMPT, max_tokens=5)
    assert response.status_code == 503
    await d.idle()
    assert all(not link.legs for link in d.router.fleet.links.values())
