"""Renders the answers of the OpenAI routes as JSON. Pure.

The chunks of a stream are built from prepared strings, since they are the router's hottest path.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from v4_router.job import Job
from v4_router.output import Delta, LogprobWriter

DONE = b"data: [DONE]\n\n"

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def dumps(value: Any) -> str:
    """Returns compact JSON in which no client finds a line break. Other non-ASCII text is not escaped.

    In server-sent events a line ends at CR or LF only, but clients that split lines with the functions of Python or
    JavaScript also split at U+0085, U+2028 and U+2029. All other line breaks of theirs are control characters, which
    JSON escapes anyway.
    """
    text = _encode(value)
    if text.isascii():
        return text
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@dataclass(frozen=True)
class Usage:
    """Numbers of tokens of a job."""

    prompt: int
    cached: int
    completion: int

    def body(self) -> dict[str, Any]:
        """Returns the object `usage` of an answer."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(slots=True)
class _Choice:
    """The output of one choice so far."""

    begun: bool = False
    characters: int = 0
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: dict[str, Any] | None = None
    finish: str | None = None


class Renderer:
    """Renders the answer of one job.

    For a stream, call `chunk` with each delta and then `last`; otherwise call `add` with each delta and then `full`.
    """

    def __init__(self, job: Job, identity: tuple[str, int, str], writer: LogprobWriter) -> None:
        """`identity`: the answer's id, its time of creation in Unix seconds, and the model's name."""
        self._job = job
        self._writer = writer
        self._choices = [_Choice() for _ in range(job.n * len(job.prompts))]
        kind = "chat.completion" if job.chat else "text_completion"
        chunk = "chat.completion.chunk" if job.chat else kind
        names = ("id", "created", "model")
        self._full = {**dict(zip(names, identity, strict=True)), "object": kind}
        self._head = "data: " + dumps({**self._full, "object": chunk})[:-1] + ',"choices":['
        self._tail = ',"usage":null}\n\n' if job.include_usage else "}\n\n"

    def chunk(self, delta: Delta) -> str:
        """Returns one event of a stream, or "" if the delta has nothing to show."""
        job, choice = self._job, self._choices[delta.choice]
        shows_ids = job.return_token_ids and delta.ids
        if not (delta.text or delta.reasoning or delta.finish or shows_ids or (delta.logprobs and delta.ids)):
            return ""
        parts = [f'{self._head}{{"index":{delta.choice},']
        if job.chat:
            parts.append(f'"delta":{self._chat_delta(delta, choice)}')
        else:
            parts.append(f'"text":{dumps(delta.text)}')
        if job.top_logprobs is not None:
            parts.append(f',"logprobs":{dumps(self._logprobs(delta, choice))}')
        else:
            parts.append(',"logprobs":null')
        if job.return_token_ids:
            parts.append(f',"token_ids":{dumps(delta.ids)}')
        finish = f'"{delta.finish}"' if delta.finish else "null"
        parts.append(f',"finish_reason":{finish}}}]{self._tail}')
        choice.characters += len(delta.text)
        return "".join(parts)

    def last(self, usage: Usage | None, extra: dict[str, Any]) -> str:
        """Returns the event after the end of the last choice; it has the usage and `extra`, but no choice."""
        facts = dict(extra) if usage is None else {**extra, "usage": usage.body()}
        return f"{self._head}],{dumps(facts)[1:]}\n\n"

    def add(self, delta: Delta) -> None:
        """Adds a delta to the answer that `full` returns."""
        choice = self._choices[delta.choice]
        if self._job.top_logprobs is not None:
            choice.logprobs = _joined(choice.logprobs, self._logprobs(delta, choice))
        choice.characters += len(delta.text)
        choice.text.append(delta.text)
        choice.reasoning.append(delta.reasoning)
        choice.ids += delta.ids
        choice.finish = delta.finish

    def full(self, usage: Usage, extra: dict[str, Any]) -> bytes:
        """Returns the whole answer of a request that does not stream."""
        choices = [self._body(i, choice) for i, choice in enumerate(self._choices)]
        return dumps({**self._full, "choices": choices, "usage": usage.body(), **extra}).encode()

    def _body(self, index: int, choice: _Choice) -> dict[str, Any]:
        body: dict[str, Any] = {"index": index}
        text = "".join(choice.text)
        if self._job.chat:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if self._job.thinking:
                message["reasoning_content"] = "".join(choice.reasoning)
            body["message"] = message
        else:
            body["text"] = text
        body["logprobs"] = choice.logprobs
        if self._job.return_token_ids:
            body["token_ids"] = choice.ids
        body["finish_reason"] = choice.finish
        return body

    def _chat_delta(self, delta: Delta, choice: _Choice) -> str:
        fields: dict[str, Any] = {}
        if not choice.begun:
            choice.begun = True
            fields = {"role": "assistant", "content": ""}
        if delta.reasoning:
            fields["reasoning_content"] = delta.reasoning
        if delta.text:
            fields["content"] = delta.text
        return dumps(fields)

    def _logprobs(self, delta: Delta, choice: _Choice) -> dict[str, Any]:
        if self._job.chat:
            return self._writer.chat(delta.ids, delta.logprobs)
        return self._writer.completion(delta.ids, delta.logprobs, choice.characters)


def _joined(before: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """Appends one logprobs object of a choice to the one before it."""
    if before is None:
        return more
    return {key: before[key] + value if isinstance(value, list) else value for key, value in more.items()}


def error_event(body: dict[str, Any]) -> str:
    """Returns the event that ends a failed stream."""
    return f"data: {dumps(body)}\n\n"


def models(name: str, created: int, max_model_len: int | None) -> dict[str, Any]:
    """Returns the body of `/v1/models`. `max_model_len` is None until a worker has been up."""
    return {"object": "list", "data": [model(name, created, max_model_len)]}


def model(name: str, created: int, max_model_len: int | None) -> dict[str, Any]:
    """Returns the model object of `/v1/models`."""
    return {"id": name, "object": "model", "created": created, "owned_by": "v4serve", "max_model_len": max_model_len}


def route(pairs: Sequence[tuple[str, str]], cached: int, reason: str) -> str:
    """Returns the header `x-v4serve-route`, which lists each worker of `pairs`, (prefill, decode) by prompt, once."""
    prefill = ",".join(dict.fromkeys(p for p, _ in pairs))
    decode = ",".join(dict.fromkeys(d for _, d in pairs))
    return f"prefill={prefill}; decode={decode}; cached={cached}; reason={reason}"
