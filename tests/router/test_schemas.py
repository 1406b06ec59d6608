"""Which bodies are accepted, and how others are refused."""

import json
import time
from typing import Any

import pytest

from v4_core.blocks import pack_ids
from v4_router.errors import BadRequest
from v4_router.schemas import ChatBody, CompletionBody, parse

HELLO = {"role": "user", "content": "hello"}


def completion(**fields: Any) -> CompletionBody:
    return parse(CompletionBody, json.dumps({"prompt": "x", **fields}).encode())


def chat(**fields: Any) -> ChatBody:
    return parse(ChatBody, json.dumps({"messages": [HELLO], **fields}).encode())


@pytest.mark.parametrize(
    ("prompt", "parsed"),
    [
        ("text", ["text"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [pack_ids([1, 2])]),
        ([[1, 2], [3]], [pack_ids([1, 2]), pack_ids([3])]),
    ],
)
def test_prompts(prompt: Any, parsed: list[str | bytes]) -> None:
    assert completion(prompt=prompt).prompt == parsed


@pytest.mark.parametrize("prompt", [None, 5, [], [[]], [1, "a"], [1.5], [True], [-1], [1 << 40], [[1], "a"], {}])
def test_invalid_prompts(prompt: Any) -> None:
    with pytest.raises(BadRequest) as error:
        completion(prompt=prompt)
    assert error.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temprature": 1}, "temprature", "did you mean 'temperature'"),
        ({"temperature": 3}, "temperature", "less than or equal to 2"),
        ({"temperature": "1"}, "temperature", "number"),
        ({"temperature": 0.0009}, "temperature", "must be 0 for greedy decoding, or at least 0.001"),
        ({"temperature": 5e-324}, "temperature", "at least 0.001"),
        ({"repetition_penalty": 0.009}, "repetition_penalty", "greater than or equal to 0.01"),
        ({"max_tokens": 0}, "max_tokens", "greater"),
        ({"n": True}, "n", "integer"),
        ({"stop": ""}, "stop", "at least 1"),
        ({"stop": ["a"] * 17}, "stop", "at most 16"),
        ({"stop": ["a", ""]}, "stop[1]", "at least 1"),
        ({"tools": [{}]}, "tools", "not supported yet"),
        ({"response_format": {"type": "json_object"}}, "response_format", "not supported yet"),
        ({"logit_processors": ["x"]}, "logit_processors", "not supported yet"),
        ({"echo": True}, "echo", "not supported yet"),
        ({"echo": 0}, "echo", "not supported yet"),
        ({"best_of": 2}, "best_of", "not supported yet"),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages", "'include_usage'"),
    ],
)
def test_completion_fields_refused(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message) as error:
        completion(**fields)
    assert error.value.param == param


@pytest.mark.parametrize(
    ("message", "param", "text"),
    [
        ({"role": "tool", "content": "x"}, "messages[1].role", "not supported yet"),
        ({"role": "users", "content": "x"}, "messages[1].role", "'user'"),
        ({"role": "user"}, "messages[1].content", "required"),
        ({"role": "user", "content": 5}, "messages[1].content", "valid"),
        ({"role": "user", "content": [{"type": "image_url", "text": ""}]}, "messages[1].content[0].type", "text"),
        ({"role": "user", "content": "x", "contents": ""}, "messages[1].contents", "did you mean 'content'"),
        ({"role": "user", "content": "x", "tool_calls": [1]}, "messages[1].tool_calls", "not supported yet"),
        ("hello", "messages[1]", "dictionary"),
    ],
)
def test_messages_refused(message: Any, param: str, text: str) -> None:
    with pytest.raises(BadRequest, match=text) as error:
        chat(messages=[HELLO, message])
    assert error.value.param == param


def test_the_smallest_temperatures_and_penalty_pass() -> None:
    for temperature in (0, 0.001, 2):
        assert completion(temperature=temperature, repetition_penalty=0.01).temperature == temperature


def test_fields_that_ask_for_nothing_pass() -> None:
    chat(tools=None, tool_choice="none", response_format={"type": "text"}, parallel_tool_calls=True, user="me")
    chat(messages=[{"role": "user", "content": "x", "name": None, "tool_calls": None, "refusal": None}])
    completion(echo=False, best_of=1, suffix=None, logprobs=None, stop=None, stream=None, temperature=None)


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"5", b"\xff", b'{"prompt": NaN}', b"[" * 100_000, b'"\\ud800"'])
def test_bodies_that_are_no_object(raw: bytes) -> None:
    with pytest.raises(BadRequest, match="JSON"):
        parse(CompletionBody, raw)


def test_100k_ids_are_read_quickly() -> None:
    raw = json.dumps({"prompt": list(range(100_000))}).encode()
    before = time.perf_counter()
    parse(CompletionBody, raw)
    assert time.perf_counter() - before < 0.2  # takes 8 ms on an idle machine
