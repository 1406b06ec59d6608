"""The router's policy: its effect on requests, and changes of it while the router runs."""

import asyncio
import json
from pathlib import Path

import pytest

from tests.router.conftest import Deploy, Deployment, until
from tests.router.fake_worker import expected
from v4_core.errors import ConfigError
from v4_core.v1 import worker_pb2 as pb
from v4_router.policy import Policy, read_policy

PROMPT = [10, 20, 30]


async def without_prefill(d: Deployment) -> None:
    await d.prefill[0].kill()
    await until(lambda: not d.router.fleet.prefill[0].up, "prefill is lost")


async def test_decode_serves_alone_and_says_so(deploy: Deploy) -> None:
    d = await deploy(1, 1)
    await without_prefill(d)
    assert (await d.http.get("/ready")).status_code == 200
    answer = await d.complete(PROMPT, max_tokens=3, headers={"x-v4serve-timing": "1"})
    assert answer.headers["x-v4serve-route"].startswith("prefill=-;")
    assert answer.headers["x-v4serve-route"].endswith("reason=no-prefill-worker")
    assert answer.json()["v4serve"]["ways"][0]["reason"] == "no-prefill-worker"


async def test_decode_may_be_kept_from_prompts(deploy: Deploy) -> None:
    d = await deploy(1, 1, policy=Policy(without_prefill="refuse"))
    assert (await d.complete(PROMPT, max_tokens=3)).status_code == 200
    await without_prefill(d)
    d.decode[0].starts.clear()
    answer = await d.complete(PROMPT, max_tokens=3)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "decode workers may not compute prompts" in answer.json()["error"]["message"]
    assert (await d.http.get("/ready")).status_code == 503
    assert not d.decode[0].starts
    await d.prefill[0].restart()
    await d.wait_up()
    assert (await d.complete(PROMPT, max_tokens=3)).status_code == 200


async def test_a_stream_waits_for_prefill_where_decode_computes_no_prompts(deploy: Deploy) -> None:
    d = await deploy(1, 1, policy=Policy(without_prefill="refuse"))
    d.decode[0].step_seconds = 0.005
    asked = asyncio.create_task(d.complete(PROMPT, max_tokens=40, return_token_ids=True))
    await until(lambda: d.decode[0].tokens_sent > 5, "decode runs")
    await without_prefill(d)
    await d.decode[0].kill()
    await d.decode[0].restart()
    await until(lambda: d.router.fleet.decode[0].usable, "decode is back")
    await d.prefill[0].restart()
    assert (await asked).json()["choices"][0]["token_ids"] == expected(PROMPT, 40)
    assert all(s.phase == pb.DECODE for s in d.decode[0].starts if not s.request.startswith("probe"))


async def test_requests_above_the_limit_are_refused(
    deploy: Deploy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("v4_core.reloading._POLL_SECONDS", 0.01)
    file = tmp_path / "policy.yaml"
    file.write_text("max_requests: 2\n")
    d = await deploy(0, 1, policy=file)
    d.decode[0].step_seconds = 0.01
    running = [asyncio.create_task(d.complete(PROMPT, max_tokens=100)) for _ in range(2)]
    await until(lambda: d.router.requests == 2, "two run")
    answer = await d.complete(PROMPT, max_tokens=3)
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert (await d.http.get("/v1/models")).status_code == 200
    file.write_text("max_requests: 3\n")
    await until(lambda: d.router.policy.max_requests == 3, "the new policy holds")
    assert (await d.complete(PROMPT, max_tokens=3)).status_code == 200
    assert [(await task).status_code for task in running] == [200, 200]
    assert d.router.requests == 0
    assert await d.metric("v4serve_requests_total", outcome="429") == 1


@pytest.mark.parametrize("first", ["unsent", "sent"])
async def test_a_transfer_may_fail_the_request(deploy: Deploy, first: str) -> None:
    d = await deploy(1, 2, policy=Policy(on_transfer_failure="fail"))
    for worker in d.decode:
        worker.refuse_always = pb.TRANSFER
        worker.may_refuse.clear()
    if first == "unsent":
        d.prefill[0].may_prefill.clear()
    body = {"prompt": PROMPT, "max_tokens": 5, "stream": True}
    lines: list[str] = []

    async def ask() -> int:
        async with d.http.stream("POST", "/v1/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
            return int(answer.status_code)

    asked = asyncio.create_task(ask())
    await until(lambda: bool(lines) or first == "unsent", "the first token came")
    for worker in d.decode:
        worker.may_refuse.set()
    status = await asked
    events = [line.removeprefix("data: ") for line in lines if line]
    error = json.loads(events[-1])["error"]
    assert (status, len(events)) == ((503, 1) if first == "unsent" else (200, 2))
    assert (error["type"], error["code"]) == ("service_unavailable_error", "transfer_failed")
    assert sum(len([s for s in w.starts if not s.request.startswith("probe")]) for w in d.decode) == 1, "no retry"
    await d.idle()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("request_timeout_seconds: 0", "request_timeout_seconds is 0.*: give more than 0"),
        ("request_timeout_seconds: 2592001", "at most 2592000"),
        ("request_timeout_seconds: .inf", "request_timeout_seconds must be a finite number"),
        ("max_requests: -1", "max_requests is -1: give 0 for no limit"),
        ("max_requests: 1\nmax_requests: 2", "occurs twice"),
        ("without_prefill: never", "without_prefill is 'never'; choose one of serve, refuse"),
        ("on_transfer_failure: retry", "choose one of recompute, fail"),
    ],
)
def test_a_policy_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_policy(file)


async def test_the_longest_time_reaches_the_workers(deploy: Deploy) -> None:
    d = await deploy(0, 1, policy=Policy(request_timeout_seconds=2_592_000))
    assert (await d.complete(PROMPT, max_tokens=3)).status_code == 200
    assert d.decode[0].starts[0].deadline_ms > 2_591_000_000
