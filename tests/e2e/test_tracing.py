"""One trace per request over real processes, as a real OTLP receiver receives it, and their JSON logs."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import otlp
from tests.e2e.deployment import local, model_folder
from tests.forked.processes import ForkedDeployment
from tests.otlp import Received, Receiver, Span
from v4_cli.local import LocalDeployment

TRACE, CLIENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PROMPT = [(7 * i) % 380 + 2 for i in range(600)]  # two complete blocks and an open one
ROOT = "text_completion tiny"
BODY = {"model": "tiny", "prompt": PROMPT, "max_tokens": 6, "temperature": 0.0, "seed": 1, "ignore_eos": True}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver that the environment of the processes names."""
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    with otlp.receiver() as one:
        for name, value in {**otlp.ENVIRONMENT, "OTEL_EXPORTER_OTLP_ENDPOINT": one.endpoint}.items():
            monkeypatch.setenv(name, value)
        yield one


@dataclass
class Log:
    """The lines that the processes logged."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, process: str, line: str) -> None:
        self.lines.append((process, line))

    def entries(self) -> list[dict[str, Any]]:
        """Return the log entries of all processes except the supervisor."""
        return [json.loads(line) for process, line in self.lines if process != "v4serve"]


@pytest.fixture
def log() -> Log:
    """The log of the deployment."""
    return Log()


@pytest.fixture
async def deployment(model: Path, receiver: Receiver, log: Log) -> AsyncIterator[LocalDeployment]:
    """A deployment of two workers of each role."""
    config = replace(local(model, 2, 2).config, log_format="json")
    async with ForkedDeployment(config, log=log) as running:
        yield running


async def until(receiver: Receiver, enough: Callable[[Sequence[Received]], bool]) -> list[Received]:
    """Return the received spans as soon as they are enough."""
    return await asyncio.to_thread(receiver.until, enough)


def named(spans: Sequence[Received], name: str) -> list[Received]:
    """Return the spans of a name in the order of their start times."""
    return sorted((one for one in spans if one.name == name), key=lambda one: one.span.start_time_unix_nano)


async def test_a_request_is_one_trace_over_all_processes(
    deployment: LocalDeployment, receiver: Receiver, log: Log
) -> None:
    headers = {"traceparent": f"00-{TRACE}-{CLIENT}-01", "tracestate": "vendor=1", "x-request-id": "mine"}
    async with httpx.AsyncClient(base_url=deployment.url) as client:
        answer = await client.post("/v1/completions", json=BODY, headers=headers)
    assert answer.status_code == 200
    assert "traceparent" not in answer.headers
    spans = await until(receiver, lambda all_: len(all_) >= 5)
    assert sorted(one.name for one in spans) == ["decode", "prefill", "queue", ROOT, "transfer"]
    assert {(one.trace, one.span.trace_state) for one in spans} == {(TRACE, "vendor=1")}
    [root] = named(spans, ROOT)
    assert (root.parent, root.span.kind, root.service) == (CLIENT, Span.SPAN_KIND_SERVER, "v4serve-router")
    assert {one.parent for one in spans if one is not root} == {root.id}
    services = {one.name: one.service for one in spans if one is not root}
    assert services == {
        "queue": "v4serve-prefill",
        "prefill": "v4serve-prefill",
        "transfer": "v4serve-decode",
        "decode": "v4serve-decode",
    }
    check_order(root, spans)
    id_ = answer.json()["id"]
    check_router(root, id_)
    check_workers(spans, id_, deployment)
    check_log(log, id_)


def check_order(root: Received, spans: Sequence[Received]) -> None:
    """Assert that each span is within the request's, and that the spans of a worker follow each other."""
    times = {one.name: (one.span.start_time_unix_nano, one.span.end_time_unix_nano) for one in spans}
    start, end = times[root.name]
    slack = 50_000_000  # ns; the router may end its span while the worker ends its own
    assert all(start <= begin <= over <= end + slack for begin, over in times.values())
    assert times["queue"][1] == times["prefill"][0]
    assert times["transfer"][1] == times["decode"][0]


def check_router(root: Received, id_: str) -> None:
    found = root.attributes
    assert {name: value for name, value in found.items() if name.startswith("gen_ai.")} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "v4serve",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.max_tokens": 6,
        "gen_ai.request.temperature": 0.0,
        "gen_ai.request.top_p": 1.0,
        "gen_ai.response.id": id_,
        "gen_ai.response.model": "tiny",
        "gen_ai.response.finish_reasons": ["length"],
        "gen_ai.usage.input_tokens": 600,
        "gen_ai.usage.output_tokens": 6,
    }
    assert found["http.response.status_code"] == 200
    assert 0 < found["v4serve.ttft_seconds"] < found["v4serve.total_seconds"]
    placed = [(name, at["v4serve.leg"], at["v4serve.attempt"]) for name, at in root.events]
    assert placed == [("placed", "prefill", 0), ("placed", "decode", 0)]
    assert not root.failed


def check_workers(spans: Sequence[Received], id_: str, deployment: LocalDeployment) -> None:
    addresses = {address: name for name, address in deployment.addresses.items()}
    for one in spans:
        if one.name in ("queue", "prefill", "transfer", "decode"):
            assert (one.attributes["v4serve.request"], one.attributes["v4serve.attempt"]) == (id_, 0)
            assert one.service.endswith(addresses[one.attributes["v4serve.worker"]].partition("-")[0])
            assert not one.failed
    by_name = {one.name: one.attributes for one in spans}
    assert (by_name["prefill"]["v4serve.prompt_tokens"], by_name["prefill"]["v4serve.cached_tokens"]) == (600, 0)
    assert (by_name["prefill"]["v4serve.leg"], by_name["decode"]["v4serve.leg"]) == ("prefill", "decode")
    moved = by_name["transfer"]
    assert (moved["v4serve.blocks_pulled"], moved["v4serve.blocks_local"]) == (2, 0)
    assert moved["v4serve.bytes"] > 0
    assert moved["v4serve.wait_seconds"] >= 0
    assert moved["v4serve.source"] == by_name["prefill"]["v4serve.worker"]
    assert by_name["decode"]["v4serve.generated_tokens"] == 5, "the first token comes from prefill"
    assert by_name["decode"]["v4serve.end"] == "finished"


def check_log(log: Log, id_: str) -> None:
    entries = log.entries()
    assert all({"time", "level", "logger", "message"} <= set(entry) for entry in entries)
    [ended] = [entry for entry in entries if entry["logger"] == "v4serve.request"]
    assert (ended["request_id"], ended["id"], ended["outcome"]) == ("mine", id_, "ok")
    assert ended["trace_id"] == TRACE


async def test_a_request_that_moves_shows_every_attempt(deployment: LocalDeployment, receiver: Receiver) -> None:
    body = {**BODY, "max_tokens": 400, "stream": True}
    async with (
        httpx.AsyncClient(base_url=deployment.url, timeout=120) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.aiter_lines()
        for _ in range(20):
            await anext(lines)
        way = dict(part.strip().split("=", 1) for part in answer.headers["x-v4serve-route"].split(";"))
        index = [deployment.addresses[f"decode-{i}"] for i in (0, 1)].index(way["decode"])
        await deployment.kill("decode", index, signal.SIGKILL)
        rest = [line async for line in lines]
    assert "data: [DONE]" in rest
    spans = await until(receiver, lambda all_: bool(named(all_, ROOT) and named(all_, "decode")))
    [root] = named(spans, ROOT)
    assert {one.trace for one in spans} == {root.trace}
    assert {one.parent for one in spans if one is not root} == {root.id}
    happened = [(name, found["v4serve.worker"], found.get("error.type", "")) for name, found in root.events]
    lost, other = way["decode"], deployment.addresses[f"decode-{1 - index}"]
    assert happened.index(("placed", lost, "")) < happened.index(("failed", lost, "lost"))
    assert happened.index(("failed", lost, "lost")) < happened.index(("placed", other, ""))
    [decode] = named(spans, "decode")  # the killed worker's spans are lost
    assert decode.attributes["v4serve.worker"] == other
    assert (decode.attributes["v4serve.end"], root.failed) == ("finished", False)


async def test_spans_of_refused_and_cancelled_requests(deployment: LocalDeployment, receiver: Receiver) -> None:
    long = {**BODY, "max_tokens": 400, "stream": True}
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "the cat"}], "max_tokens": 10**6}
    async with httpx.AsyncClient(base_url=deployment.url, timeout=120) as client:
        assert (await client.post("/v1/chat/completions", json=chat)).status_code == 400
        async with client.stream("POST", "/v1/completions", json=long) as answer:
            lines = answer.aiter_lines()
            for _ in range(20):  # past the first token, which comes from prefill
                await anext(lines)
    spans = await until(receiver, lambda all_: bool(named(all_, ROOT) and named(all_, "decode")))
    [refused], [left], [decode] = named(spans, "chat tiny"), named(spans, ROOT), named(spans, "decode")
    assert (refused.attributes["error.type"], refused.attributes["http.response.status_code"]) == ("400", 400)
    assert not refused.failed, "a client's mistake is not an error of the server"
    assert left.attributes["error.type"] == "client_gone"
    assert not left.failed
    assert (decode.parent, decode.attributes["v4serve.end"], decode.failed) == (left.id, "cancelled", False)


async def test_a_request_without_workers_is_an_error(deployment: LocalDeployment, receiver: Receiver) -> None:
    for role in ("prefill", "decode"):
        for index in (0, 1):
            await deployment.kill(role, index)
    async with httpx.AsyncClient(base_url=deployment.url, timeout=120) as client:
        answer = await client.post("/v1/completions", json=BODY)
    assert answer.status_code == 503
    [root] = await until(receiver, bool)
    assert (root.failed, root.attributes["error.type"]) == (True, "503")
    assert root.span.status.message == answer.json()["error"]["message"]


async def test_an_unsampled_request_has_no_trace(deployment: LocalDeployment, receiver: Receiver) -> None:
    async with httpx.AsyncClient(base_url=deployment.url) as client:
        for trace, flags in (("1" * 32, "00"), (TRACE, "01")):
            headers = {"traceparent": f"00-{trace}-{CLIENT}-{flags}"}
            assert (await client.post("/v1/completions", json=BODY, headers=headers)).status_code == 200
    spans = await until(receiver, lambda all_: len([one for one in all_ if one.trace == TRACE]) == 5)
    assert {one.trace for one in spans} == {TRACE}
