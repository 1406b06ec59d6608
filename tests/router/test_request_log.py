"""The log line of a request."""

import asyncio
import json
import logging
from typing import Any

import pytest

from tests.router.conftest import Deploy, Deployment, until
from v4_core.logs import JsonFormatter
from v4_core.v1 import worker_pb2 as pb
from v4_router.policy import Policy
from v4_router.request_log import Ended, facts, sentence
from v4_router.timing import Breakdown

PROMPT = [10, 20, 30]
ENDED = Ended("r-1", "cmpl-1", "completions", "400", "")
NOTHING = Breakdown(None, None, None, None, None, 0.0012345678)


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Captures all log lines, including those about requests."""
    caplog.set_level(logging.INFO, "v4serve.request")
    return caplog


async def line(lines: pytest.LogCaptureFixture) -> logging.LogRecord:
    """Waits for the only line about a request so far, and clears the captured lines."""

    def mine() -> list[logging.LogRecord]:
        return [record for record in lines.records if record.name == "v4serve.request"]

    await until(lambda: bool(mine()), "the line of a request")
    (record,) = mine()
    assert record.levelname == "INFO"
    lines.clear()
    return record


async def fields_of(lines: pytest.LogCaptureFixture) -> dict[str, Any]:
    """Returns the fields of the next line about a request."""
    return dict((await line(lines)).__dict__["fields"])


def test_a_request_that_reached_no_worker() -> None:
    fields = facts(ENDED, NOTHING, None)
    assert fields == {
        "request_id": "r-1", "id": "cmpl-1", "endpoint": "completions", "outcome": "400", "total_seconds": 0.001235,
    }  # fmt: skip
    assert sentence(fields) == "request r-1 completions 400; total 0.001 s"


def test_the_text_of_a_line() -> None:
    fields: dict[str, Any] = {
        "request_id": "r", "endpoint": "chat", "outcome": "ok", "tenant": "blue", "prompt_tokens": 9,
        "cached_tokens": 4, "generated_tokens": 5, "ttft_seconds": 0.5, "queue_seconds": 0.25, "prefill_seconds": 0.25,
        "decode_seconds": 1.0, "total_seconds": 1.5, "prefill_worker": "p:1", "decode_worker": "d:1,d:2", "retries": 2,
        "finish_reason": "stop",
    }  # fmt: skip
    assert sentence(fields) == (
        "request r chat ok; 9 prompt tokens, 4 of them cached, 5 generated; "
        "ttft 0.500 s, queue 0.250 s, prefill 0.250 s, decode 1.000 s, total 1.500 s; "
        "prefill on p:1; decode on d:1,d:2; retries 2; finish stop; tenant blue"
    )


async def test_a_request_that_was_served(deploy: Deploy, lines: pytest.LogCaptureFixture) -> None:
    d: Deployment = await deploy()
    d.prefill[0].cached_tokens = 2
    answer = await d.complete(PROMPT, max_tokens=5, headers={"x-request-id": "mine"})
    fields = await fields_of(lines)
    assert {name: fields.pop(name) for name in list(fields) if not name.endswith("_seconds")} == {
        "request_id": "mine", "id": answer.json()["id"], "endpoint": "completions", "outcome": "ok",
        "prompt_tokens": 3, "cached_tokens": 2, "generated_tokens": 5, "retries": 0, "finish_reason": "length",
        "prefill_worker": d.prefill[0].address, "decode_worker": d.decode[0].address,
    }  # fmt: skip
    assert set(fields) == {f"{name}_seconds" for name in ("ttft", "itl", "queue", "prefill", "decode", "total")}
    parts = fields["queue_seconds"] + fields["prefill_seconds"]
    assert parts == pytest.approx(fields["ttft_seconds"], abs=1e-5)
    assert fields["ttft_seconds"] + fields["decode_seconds"] <= fields["total_seconds"]


async def test_a_request_that_prefill_alone_served(deploy: Deploy, lines: pytest.LogCaptureFixture) -> None:
    d = await deploy()
    await d.complete(PROMPT, max_tokens=1)
    fields = await fields_of(lines)
    assert (fields["prefill_worker"], "decode_worker" in fields) == (d.prefill[0].address, False)


async def test_requests_that_fail(deploy: Deploy, lines: pytest.LogCaptureFixture) -> None:
    d = await deploy(0, 1)
    await d.complete(PROMPT, bogus=1)
    assert (await fields_of(lines))["outcome"] == "400"
    d.decode[0].refuse_always = pb.OVERLOADED
    await d.complete(PROMPT)
    fields = await fields_of(lines)
    assert (fields["outcome"], fields["generated_tokens"], fields["prompt_tokens"]) == ("429", 0, 3)
    assert fields["retries"] > 0
    assert "finish_reason" not in fields
    assert "prefill_worker" not in fields


async def test_the_line_of_a_refused_request_has_the_reason(deploy: Deploy, lines: pytest.LogCaptureFixture) -> None:
    """The line has the error's code and the field's name, and nothing of the field's content."""
    d = await deploy(0, 1)
    await d.complete(PROMPT, model="secret")
    record = await line(lines)
    assert record.__dict__["fields"]["error"] == "model_not_found"
    assert record.getMessage().split("; ")[0].endswith(" completions 404 model_not_found of 'model'")
    wrong = {
        "unknown_parameter": ({"secret": 1}, {"stream_options": {"secret": 1}}),
        "invalid_request_error": ({"logit_bias": {"secret": "x"}}, {"metadata": {"secret": 1}}, {"user": ["secret"]}),
    }
    for kind, bodies in wrong.items():
        for body in bodies:
            assert (await d.complete(PROMPT, **body)).status_code == 400
            entry = JsonFormatter().format(await line(lines))
            assert json.loads(entry)["error"] == kind
            assert "secret" not in entry


async def test_requests_over_the_limit_and_clients_that_leave(deploy: Deploy, lines: pytest.LogCaptureFixture) -> None:
    d = await deploy(0, 1, policy=Policy(max_requests=1))
    d.decode[0].hangs = True
    async with asyncio.TaskGroup() as group:
        first = group.create_task(d.complete(PROMPT))
        await until(lambda: bool(d.decode[0].running), "it is being served")
        assert (await d.complete(PROMPT)).status_code == 429
        fields = await fields_of(lines)
        assert (fields["outcome"], "prompt_tokens" in fields) == ("429", False)
        first.cancel()
    fields = await fields_of(lines)
    assert (fields["outcome"], fields["prompt_tokens"], fields["generated_tokens"]) == ("client_gone", 3, 0)


async def test_prompts_are_logged_if_the_policy_says_so(
    deploy: Deploy, lines: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    d = await deploy(0, 1, policy=Policy(log_prompts=True))
    await d.chat([{"role": "user", "content": "the cat\nsat"}], max_tokens=3)
    record = await line(lines)
    (prompt,) = record.__dict__["fields"]["prompts"]
    assert "<｜User｜>the cat\nsat<｜Assistant｜>" in prompt
    assert record.getMessage().endswith(f"; prompts {json.dumps([prompt])}")
    monkeypatch.setattr("v4_router.request_log.writes_json", lambda: True)
    await d.chat([{"role": "user", "content": "the cat\nsat"}], max_tokens=3)
    entry = json.loads(JsonFormatter().format(await line(lines)))
    assert entry["prompts"] == [prompt]
    assert "sat" not in entry["message"], "once is enough"
    await d.complete([[10, 20], [30]], max_tokens=3)
    assert len((await fields_of(lines))["prompts"]) == 2


async def test_no_prompt_is_logged_and_json_lines_have_the_fields(
    deploy: Deploy, lines: pytest.LogCaptureFixture
) -> None:
    d = await deploy(0, 1)
    await d.chat([{"role": "user", "content": "the secret cat"}], max_tokens=3)
    entry = json.loads(JsonFormatter().format(await line(lines)))
    assert (entry["endpoint"], entry["outcome"], entry["generated_tokens"]) == ("chat", "ok", 3)
    assert entry["message"].startswith(f"request {entry['request_id']} chat ok; ")
    assert "secret" not in json.dumps(entry)
