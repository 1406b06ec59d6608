"""The OpenAI routes as clients see them, over the network."""

import asyncio
import json
import logging
import socket
import time
from array import array
from typing import Any

import httpx
import pytest

from tests.router.conftest import MODEL, Deploy, Deployment
from tests.router.fake_worker import EOS, VOCAB, expected
from tests.router.tokenizers import build_tokenizer
from v4_core.v1 import worker_pb2 as pb
from v4_router.detokenizer import byte_of_char
from v4_router.policy import Policy

PROMPT = [10, 20, 30]
USER = [{"role": "user", "content": "hello"}]


def ids_of(text: str) -> list[int]:
    return list(build_tokenizer().encode(text, add_special_tokens=False).ids)


def token_id(name: str) -> int:
    token = build_tokenizer().token_to_id(name)
    assert token is not None
    return token


def byte_ids(text: str) -> list[int]:
    """One token per byte."""
    chars = {byte: char for char, byte in byte_of_char().items()}
    return [token_id(chars[byte]) for byte in text.encode()]


def script(d: Deployment, ids: list[int]) -> None:
    """Makes all workers generate this text."""
    for worker in d.workers:
        worker.script = lambda choice: ids


async def events(d: Deployment, path: str, body: dict[str, Any], headers: dict[str, str] | None = None) -> list[Any]:
    """Returns the events of a stream."""
    result: list[Any] = []
    async with d.http.stream("POST", path, json={**body, "stream": True}, headers=headers) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line:
                assert line.startswith("data: ")
                result.append(line[6:] if line == "data: [DONE]" else json.loads(line[6:]))
    return result


async def test_token_ids_in_and_out(deploy: Deploy) -> None:
    d = await deploy()
    response = await d.complete(PROMPT, max_tokens=5, return_token_ids=True, model=MODEL)
    assert response.status_code == 200, response.text
    body = response.json()
    choice = body["choices"][0]
    assert choice["token_ids"] == expected(PROMPT, 5)
    assert choice["finish_reason"] == "length"
    assert body["usage"] == {
        "prompt_tokens": 3,
        "completion_tokens": 5,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 0},
    }
    (first,), (second,) = d.prefill[0].starts, d.decode[0].starts
    assert (first.phase, second.phase) == (pb.PREFILL, pb.DECODE)
    assert (second.source.address, second.request, second.attempt) == (d.prefill[0].address, first.request, 0)
    assert first.sampling == second.sampling
    assert first.sampling.seed
    assert 0 < first.deadline_ms <= 3_600_000
    await d.idle()
    assert not d.prefill[0].cancels + d.decode[0].cancels  # no leg had to be cancelled


async def test_a_stream_of_token_ids(deploy: Deploy) -> None:
    d = await deploy()
    seen = await events(d, "/v1/completions", {"prompt": PROMPT, "max_tokens": 7, "return_token_ids": True})
    assert seen.pop() == "[DONE]"
    assert [i for e in seen for i in e["choices"][0]["token_ids"]] == expected(PROMPT, 7)
    assert [e["choices"][0]["finish_reason"] for e in seen] == [None] * (len(seen) - 1) + ["length"]


async def test_several_prompts_with_several_choices(deploy: Deploy) -> None:
    d = await deploy(2, 2)
    prompts = [[10, 11], [12], [13, 14, 15]]
    body = {"prompt": prompts, "n": 2, "max_tokens": 4, "return_token_ids": True}
    right = [expected(prompt, 4, choice) for prompt in prompts for choice in range(2)]
    response = await d.complete(**body)
    assert [c["token_ids"] for c in response.json()["choices"]] == right
    assert response.json()["usage"]["prompt_tokens"] == 6
    streamed: dict[int, list[int]] = {}
    for event in (await events(d, "/v1/completions", body))[:-1]:
        choice = event["choices"][0]
        streamed.setdefault(choice["index"], []).extend(choice["token_ids"])
    assert [streamed[i] for i in range(6)] == right
    legs = [start.phase for worker in d.workers for start in worker.starts]
    assert (legs.count(pb.PREFILL), legs.count(pb.DECODE)) == (6, 6)  # one of each per prompt, whatever n is
    await d.idle()


async def test_no_decode_runs_when_the_first_token_is_the_last(deploy: Deploy) -> None:
    d = await deploy()
    response = await d.complete(PROMPT, max_tokens=1, return_token_ids=True)
    assert response.json()["choices"][0]["token_ids"] == expected(PROMPT, 1)
    await d.idle()


async def test_chat_through_the_official_client(deploy: Deploy) -> None:
    d = await deploy()
    script(d, ids_of("the cat sat"))
    answer = await d.openai.chat.completions.create(model=MODEL, messages=USER)
    assert answer.choices[0].message.content == "the cat sat"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(ids_of("the cat sat")) + 1
    stream = await d.openai.chat.completions.create(
        model=MODEL,
        messages=USER,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = [chunk async for chunk in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "the cat sat"
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage == answer.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_text_prompts_through_the_official_client(deploy: Deploy) -> None:
    d = await deploy()
    script(d, ids_of("a bird"))
    answer = await d.openai.completions.create(model=MODEL, prompt=["the cat", "the dog"])
    assert [c.text for c in answer.choices] == ["a bird", "a bird"]
    stream = await d.openai.completions.create(model=MODEL, prompt="the cat", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == "a bird"
    assert array("I", d.prefill[0].starts[0].prompt_ids).tolist() == [0, *ids_of("the cat")]


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_and_answer_are_separate(deploy: Deploy, stream: bool) -> None:
    d = await deploy()
    end = token_id("</think>")
    script(d, [*ids_of("the dog"), end, *ids_of("a bird")])
    body = {"messages": USER, "chat_template_kwargs": {"thinking": True}, "stop": ["dog", "ird"]}
    if stream:
        deltas = [e["choices"][0]["delta"] for e in (await events(d, "/v1/chat/completions", body))[:-1]]
        content = "".join(delta.get("content", "") for delta in deltas)
        reasoning = "".join(delta.get("reasoning_content", "") for delta in deltas)
    else:
        message = (await d.chat(**body)).json()["choices"][0]["message"]
        content, reasoning = message["content"], message["reasoning_content"]
    assert (reasoning, content) == ("the dog", "a b")  # stop strings end the answer, not the reasoning
    await d.idle()


async def test_utf8_is_never_split(deploy: Deploy) -> None:
    d = await deploy()
    text = "é你🙂ü"
    script(d, byte_ids(text))
    seen = await events(d, "/v1/completions", {"prompt": PROMPT, "return_token_ids": True})
    pieces = [e["choices"][0]["text"] for e in seen[:-1]]
    assert "".join(pieces) == text
    assert [p for p in pieces if p] == list(text)
    assert sum(len(e["choices"][0]["token_ids"]) for e in seen[:-1]) == len(text.encode()) + 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_stop_string_ends_the_choice_and_the_work(deploy: Deploy, stream: bool) -> None:
    d = await deploy()
    d.decode[0].step_seconds = 0.002
    script(d, byte_ids("say END now and go on for ever" * 100))
    body = {"prompt": PROMPT, "stop": "END", "return_token_ids": True}
    if stream:
        seen = await events(d, "/v1/completions", {**body, "stream_options": {"include_usage": True}})
        text = "".join(e["choices"][0]["text"] for e in seen[:-2])
        usage, finish = seen[-2]["usage"], seen[-3]["choices"][0]["finish_reason"]
    else:
        answer = (await d.complete(**body)).json()
        text, finish = answer["choices"][0]["text"], answer["choices"][0]["finish_reason"]
        usage = answer["usage"]
        assert answer["choices"][0]["token_ids"] == byte_ids("say END")
    assert (text, finish, usage["completion_tokens"]) == ("say ", "stop", 7)
    await d.idle()
    assert [c.request for c in d.decode[0].cancels] == [d.decode[0].starts[0].request]


async def test_logprobs_in_both_shapes(deploy: Deploy) -> None:
    d = await deploy()
    script(d, byte_ids("ab"))
    chat = await d.openai.chat.completions.create(model=MODEL, messages=USER, logprobs=True, top_logprobs=2)
    assert chat.choices[0].logprobs is not None
    content = chat.choices[0].logprobs.content or []
    assert [entry.token for entry in content] == ["a", "b", "<｜end▁of▁sentence｜>"]
    assert (content[0].logprob, content[0].bytes, len(content[0].top_logprobs)) == (-0.5, [97], 2)
    plain = await d.openai.completions.create(model=MODEL, prompt=PROMPT, logprobs=1)
    logprobs = plain.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.tokens or [])[:2] == ["a", "b"]
    assert logprobs.token_logprobs == [-0.5] * 3
    assert logprobs.text_offset == [0, 1, 2]
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] == {"a": -0.5}
    seen = await events(d, "/v1/completions", {"prompt": PROMPT, "logprobs": 0})
    assert [o for e in seen[:-1] for o in e["choices"][0]["logprobs"]["text_offset"]] == [0, 1, 2]
    assert d.prefill[0].starts[-1].sampling.logprobs == 0


@pytest.mark.parametrize(
    ("asked", "rank", "alternatives", "completion"),
    [
        (0, 0, [], {"d": -0.5}),
        (2, 0, ["d", "e"], {"d": -0.5, "e": -1.5}),
        (2, 1, ["c", "d"], {"c": -0.5, "d": -1.5}),
        (2, 3, ["a", "b"], {"a": -0.5, "b": -1.5, "d": -3.5}),
        (0, 3, [], {"d": -3.5}),
    ],
)
async def test_a_sampled_token_is_among_a_completions_alternatives_and_beside_a_chats(
    deploy: Deploy, asked: int, rank: int, alternatives: list[str], completion: dict[str, float]
) -> None:
    d = await deploy()
    script(d, byte_ids("d"))
    for worker in d.workers:
        worker.rank = rank
    plain = await d.openai.completions.create(model=MODEL, prompt=PROMPT, logprobs=asked, max_tokens=1)
    logprobs = plain.choices[0].logprobs
    assert logprobs is not None
    assert (logprobs.top_logprobs, logprobs.token_logprobs) == ([completion], [completion["d"]])
    chat = await d.openai.chat.completions.create(
        model=MODEL, messages=USER, logprobs=True, top_logprobs=asked, max_tokens=1
    )
    assert chat.choices[0].logprobs is not None
    (entry,) = chat.choices[0].logprobs.content or []
    assert (entry.token, entry.logprob) == ("d", completion["d"])
    assert [other.token for other in entry.top_logprobs] == alternatives


async def test_no_client_takes_a_token_for_the_end_of_a_line(deploy: Deploy) -> None:
    d = await deploy()
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei\rj\nk"
    script(d, byte_ids(text))
    seen = await events(d, "/v1/completions", {"prompt": PROMPT})  # httpx splits lines with str.splitlines
    assert "".join(e["choices"][0]["text"] for e in seen[:-1]) == text
    plain = await d.openai.completions.create(model=MODEL, prompt=PROMPT, stream=True)
    assert "".join([chunk.choices[0].text async for chunk in plain]) == text
    chat = await d.openai.chat.completions.create(model=MODEL, messages=USER, stream=True)
    assert "".join([chunk.choices[0].delta.content or "" async for chunk in chat]) == text


async def test_parameters_reach_the_workers(deploy: Deploy) -> None:
    d = await deploy()
    await d.complete(
        PROMPT, max_tokens=3, temperature=0.5, top_p=0.9, top_k=-1, min_p=0.1, seed=-1, ignore_eos=True,
        presence_penalty=0.25, frequency_penalty=0.5, repetition_penalty=1.5, logit_bias={"7": -2},
        stop_token_ids=[399],
    )  # fmt: skip
    start = d.decode[0].starts[0]
    sampling = start.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 0, 0.1)
    assert (sampling.seed, dict(sampling.logit_bias)) == (2**64 - 1, {7: -2.0})
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.25, 0.5, 1.5)
    assert (start.max_tokens, start.ignore_eos, list(start.stop_token_ids)) == (3, True, [399])


async def test_route_cached_tokens_and_request_id(deploy: Deploy) -> None:
    d = await deploy()
    d.prefill[0].cached_tokens = 256
    prompt = [10 + i % 50 for i in range(600)]
    response = await d.complete(prompt, max_tokens=3, headers={"x-request-id": "mine-1"})
    pair = f"prefill={d.prefill[0].address}; decode={d.decode[0].address}"
    assert response.headers["x-v4serve-route"] == f"{pair}; cached=256; reason=least-queued"
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["usage"]["prompt_tokens_details"] == {"cached_tokens": 256}
    again = await d.complete(prompt, max_tokens=3, headers={"x-request-id": "bad id"})
    assert again.headers["x-v4serve-route"].endswith("reason=prefix")
    assert again.headers["x-request-id"] not in ("", "bad id")


@pytest.mark.parametrize("stream", [False, True])
async def test_the_route_names_no_decode_worker_that_took_no_part(deploy: Deploy, stream: bool) -> None:
    d = await deploy()
    response = await d.complete(PROMPT, max_tokens=1, stream=stream)
    route = f"prefill={d.prefill[0].address}; decode=-; cached=0; reason=least-queued"
    assert response.headers["x-v4serve-route"] == route
    facts = (await d.complete(PROMPT, max_tokens=1, headers={"x-v4serve-timing": "1"})).json()["v4serve"]
    assert [(way["prefill"], way["decode"]) for way in facts["ways"]] == [(d.prefill[0].address, "-")]
    assert not d.decode[0].starts


async def test_a_prefix_goes_where_it_is_cached(deploy: Deploy) -> None:
    d = await deploy(2, 1)
    prefixes = [[10 + i] * 600 for i in range(6)]
    for round_ in range(3):
        for prefix in prefixes:
            assert (await d.complete([*prefix, 50 + round_], max_tokens=1)).status_code == 200
    for prefix in prefixes:
        homes = {w.address for w in d.prefill for s in w.starts if array("I", s.prompt_ids)[0] == prefix[0]}
        assert len(homes) == 1
    assert all(worker.starts for worker in d.prefill)


async def test_timings_and_workers_are_added_on_request(deploy: Deploy) -> None:
    d = await deploy()
    d.decode[0].step_seconds = 0.05  # else tokens may arrive together, without a measurable time between them
    asked = {"x-v4serve-timing": "1"}
    facts = (await d.complete(PROMPT, max_tokens=4, headers=asked)).json()["v4serve"]
    assert facts["ttft_seconds"] > 0
    assert facts["itl_seconds"] > 0
    (way,) = facts["ways"]
    assert way["transfer"] == {
        "bytes": 1000, "seconds": 0.5, "wait_seconds": 0.25, "blocks_pulled": 3, "blocks_local": 1,
    }  # fmt: skip
    assert way["prefill"] == d.prefill[0].address
    seen = await events(d, "/v1/completions", {"prompt": PROMPT, "max_tokens": 4}, asked)
    assert seen[-2]["choices"] == []
    assert seen[-2]["v4serve"]["ways"][0]["transfer"]["bytes"] == 1000
    assert "v4serve" not in (await d.complete(PROMPT, max_tokens=4)).json()


async def test_without_prefill_workers_decode_does_all(deploy: Deploy) -> None:
    d = await deploy(0, 1)
    response = await d.complete(PROMPT, max_tokens=5, return_token_ids=True)
    assert response.json()["choices"][0]["token_ids"] == expected(PROMPT, 5)
    assert d.decode[0].starts[0].phase == pb.WHOLE
    assert "prefill=-;" in response.headers["x-v4serve-route"]
    assert response.headers["x-v4serve-route"].endswith("reason=no-prefill-worker")


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"model": "other"}, 404, "model", "use 'tiny'"),
        ({"prompt": [VOCAB]}, 400, "prompt", "token id 400 is outside the vocabulary of 400 tokens"),
        ({"prompt": [9] * 100}, 400, "prompt", "100 tokens, but may have at most 99"),
        ({"prompt": [9] * 90, "max_tokens": 11}, 400, "max_tokens", "90 tokens leave 10 of the 100 that"),
        ({"logit_bias": {"400": 1}}, 400, "logit_bias", "is not a token id"),
        ({"logit_bias": {"x": 1}}, 400, "logit_bias", "is not a token id"),
        ({"prompt": [[9]] * 100, "n": 2}, 400, "n", "more than 128 choices"),
        ({"stream_options": {}}, 400, "stream_options", "needs stream=true"),
        ({"bogus": 1}, 400, "bogus", "unknown field"),
    ],
)
async def test_bad_requests(deploy: Deploy, body: dict[str, Any], status: int, param: str, message: str) -> None:
    d = await deploy(0, 1, max_model_len=100)
    response = await d.complete(**{"prompt": PROMPT, **body})
    assert response.status_code == status
    error = response.json()["error"]
    assert message in error["message"]
    assert (error["param"], error["type"]) == (param, "invalid_request_error")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"chat_template_kwargs": {"thinking": True, "enable_thinking": False}}, "chat_template_kwargs"),
        ({"messages": [{"role": "user", "content": "x", "reasoning_content": "y"}]}, "messages[0].reasoning_content"),
        ({"messages": []}, "messages"),
    ],
)
async def test_bad_chats(deploy: Deploy, fields: dict[str, Any], param: str) -> None:
    d = await deploy(0, 1)
    response = await d.chat(**{"messages": USER, **fields})
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


async def test_max_tokens_defaults_to_the_rest_of_the_context(deploy: Deploy) -> None:
    d = await deploy(0, 1)
    script(d, [EOS])
    await d.complete(PROMPT)
    await d.chat(USER, max_completion_tokens=9)
    assert [start.max_tokens for start in d.decode[0].starts] == [d.decode[0].max_model_len - 3, 9]


async def test_the_other_routes(deploy: Deploy) -> None:
    d = await deploy()
    assert (await d.http.get("/health")).json() == {"status": "ok"}
    assert (await d.http.get("/ready")).status_code == 200
    models = [m async for m in d.openai.models.list()]
    assert [m.id for m in models] == [MODEL]
    assert models[0].max_model_len == d.decode[0].max_model_len
    assert (await d.openai.models.retrieve(MODEL)).id == MODEL
    for path, status in (("/v1/models/other", 404), ("/nowhere", 404), ("/v1/completions", 405)):
        response = await d.http.get(path)
        assert response.status_code == status
        assert response.json()["error"]["type"] == "invalid_request_error"
    assert response.headers["allow"] == "POST"


async def test_more_choices_than_any_decode_worker_has_room_for(deploy: Deploy) -> None:
    d = await deploy(1, 2)
    for link, sequences in zip(d.router.fleet.decode, (2, 3), strict=True):
        link.load.tails_total = sequences
    response = await d.complete(PROMPT, n=4)
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "n")
    assert "runs at most 3 sequences: ask for fewer" in error["message"]
    assert (await d.complete(PROMPT, n=3, max_tokens=3)).status_code == 200


def connect(d: Deployment, head: str, body: bytes = b"") -> socket.socket:
    """Connects a raw client, and sends this much of a request."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(10)
    url = httpx.URL(d.url)
    client.connect((url.host, url.port))
    client.sendall(f"POST /v1/completions HTTP/1.1\r\nhost: x\r\n{head}\r\n\r\n".encode() + body)
    return client


async def test_a_body_that_does_not_arrive(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_router.api._BODY_SECONDS", 0.1)
    d = await deploy(0, 1)
    with connect(d, "content-length: 100", b'{"prompt"') as client, client.makefile("rb") as answer:
        head, _, body = (await asyncio.to_thread(answer.read)).partition(b"\r\n\r\n")  # until the connection is closed
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["type"] == "invalid_request_error"


async def test_a_client_that_never_reads_ends_with_its_deadline(
    deploy: Deploy, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "v4_router.api")
    monkeypatch.setattr("v4_router.api._ERROR_SECONDS", 0.1)
    d = await deploy(0, 1, policy=Policy(request_timeout_seconds=1.5))
    body = json.dumps({"prompt": PROMPT, "stream": True, "logprobs": 20, "n": 8}).encode()
    with connect(d, f"content-length: {len(body)}", body):
        deadline = time.monotonic() + 8
        while not await d.metric("v4serve_requests_total", outcome="504"):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        await d.idle()
    (line,) = [record.getMessage() for record in caplog.records if record.name == "v4_router.api"]
    assert line.endswith(": the client did not read its error: 504 DeadlineExceeded")


async def test_too_large_a_body(deploy: Deploy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_router.api.MAX_BODY_BYTES", 1000)
    d = await deploy(0, 1)
    assert (await d.complete([9] * 1000)).status_code == 413


async def test_metrics(deploy: Deploy) -> None:
    d = await deploy()
    d.prefill[0].cached_tokens = 2
    await d.complete(PROMPT, max_tokens=5)
    await d.complete(PROMPT, bogus=1)
    assert await d.metric("v4serve_requests_total", endpoint="completions", outcome="ok") == 1
    assert await d.metric("v4serve_requests_total", outcome="400") == 1
    assert await d.metric("v4serve_prompt_tokens_total") == 3
    assert await d.metric("v4serve_cached_prompt_tokens_total") == 2
    assert await d.metric("v4serve_generated_tokens_total") == 5
    assert await d.metric("v4serve_time_to_first_token_seconds_count") == 1
    assert await d.metric("v4serve_inter_token_latency_seconds_count") >= 1
    assert await d.metric("v4serve_request_duration_seconds_count") == 1
