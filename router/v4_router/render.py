"""What the OpenAI interfaces say of a running or finished job, as JSON. Pure.

Chunks of streams are put together from prepared strings: they are the router's hottest path.
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
    """Compact JSON on what every client takes for one line; other text stays as it is.

    An event's data ends at CR or LF only, but clients that read lines with Python's or JavaScript's means may end them
    at U+0085, U+2028 and U+2029 too. The other characters at which they do are controls, which JSON escapes anyway.
    """
    text = _encode(value)
    if text.isascii():
        return text
    return text.replace("\x85", "\\u0085").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@dataclass(frozen=True)
class Usage:
    """Tokens of a job."""

    prompt: int
    cached: int
    completion: int

    def body(self) -> dict[str, Any]:
        """The `usage` object."""
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.completion,
            "total_tokens": self.prompt + self.completion,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }


@dataclass(slots=True)
class _Text:
    """What a choice has said so far."""

    begun: bool = False
    characters: int = 0
    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: dict[str, Any] | None = None
    finish: str | None = None


class Renderer:
    """Writes one job's answer: `chunk` for each delta of a stream, or `add` for each and `full` at the end."""

    def __init__(self, job: Job, identity: tuple[str, int, str], writer: LogprobWriter) -> None:
        """`identity`: id, time of creation in s and model, as the answer names them."""
        self._job = job
        self._writer = writer
        self._choices = [_Text() for _ in range(job.n * len(job.prompts))]
        kind = "chat.completion" if job.chat else "text_completion"
        chunk = "chat.completion.chunk" if job.chat else kind
        names = ("id", "created", "model")
        self._full = {**dict(zip(names, identity, strict=True)), "object": kind}
        self._head = "data: " + dumps({**self._full, "object": chunk})[:-1] + ',"choices":['
        self._tail = ',"usage":null}\n\n' if job.include_usage else "}\n\n"

    def chunk(self, delta: Delta) -> str:
        """One event of a stream, or nothing if there is nothing to show yet."""
        job, said = self._job, self._choices[delta.choice]
        shows_ids = job.return_token_ids and delta.ids
        if not (delta.text or delta.reasoning or delta.finish or shows_ids or (delta.logprobs and delta.ids)):
            return ""
        parts = [f'{self._head}{{"index":{delta.choice},']
        if job.chat:
            parts.append(f'"delta":{self._chat_delta(delta, said)}')
        else:
            parts.append(f'"text":{dumps(delta.text)}')
        if job.top_logprobs is not None:
            parts.append(f',"logprobs":{dumps(self._logprobs(delta, said))}')
        else:
            parts.append(',"logprobs":null')
        if job.return_token_ids:
            parts.append(f',"token_ids":{dumps(delta.ids)}')
        finish = f'"{delta.finish}"' if delta.finish else "null"
        parts.append(f',"finish_reason":{finish}}}]{self._tail}')
        said.characters += len(delta.text)
        return "".join(parts)

    def last(self, usage: Usage | None, extra: dict[str, Any]) -> str:
        """The event behind the last choice's end: usage and further facts, no choice."""
        facts = dict(extra) if usage is None else {**extra, "usage": usage.body()}
        return f"{self._head}],{dumps(facts)[1:]}\n\n"

    def add(self, delta: Delta) -> None:
        """Keep for `full`."""
        said = self._choices[delta.choice]
        if self._job.top_logprobs is not None:
            said.logprobs = _joined(said.logprobs, self._logprobs(delta, said))
        said.characters += len(delta.text)
        said.text.append(delta.text)
        said.reasoning.append(delta.reasoning)
        said.ids += delta.ids
        said.finish = delta.finish

    def full(self, usage: Usage, extra: dict[str, Any]) -> bytes:
        """The whole answer."""
        choices = [self._choice(i, said) for i, said in enumerate(self._choices)]
        return dumps({**self._full, "choices": choices, "usage": usage.body(), **extra}).encode()

    def _choice(self, index: int, said: _Text) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index}
        text = "".join(said.text)
        if self._job.chat:
            message: dict[str, Any] = {"role": "assistant", "content": text}
            if self._job.thinking:
                message["reasoning_content"] = "".join(said.reasoning)
            choice["message"] = message
        else:
            choice["text"] = text
        choice["logprobs"] = said.logprobs
        if self._job.return_token_ids:
            choice["token_ids"] = said.ids
        choice["finish_reason"] = said.finish
        return choice

    def _chat_delta(self, delta: Delta, said: _Text) -> str:
        fields: dict[str, Any] = {}
        if not said.begun:
            said.begun = True
            fields = {"role": "assistant", "content": ""}
        if delta.reasoning:
            fields["reasoning_content"] = delta.reasoning
        if delta.text:
            fields["content"] = delta.text
        return dumps(fields)

    def _logprobs(self, delta: Delta, said: _Text) -> dict[str, Any]:
        if self._job.chat:
            return self._writer.chat(delta.ids, delta.logprobs)
        return self._writer.completion(delta.ids, delta.logprobs, said.characters)


def _joined(before: dict[str, Any] | None, more: dict[str, Any]) -> dict[str, Any]:
    """Two logprobs objects of one choice, one behind the other."""
    if before is None:
        return more
    return {key: before[key] + value if isinstance(value, list) else value for key, value in more.items()}


def error_event(body: dict[str, Any]) -> str:
    """The one event that ends a stream which cannot go on."""
    return f"data: {dumps(body)}\n\n"


def models(name: str, created: int, max_model_len: int | None) -> dict[str, Any]:
    """Body of `/v1/models`; the length is known once a worker was up."""
    return {"object": "list", "data": [model(name, created, max_model_len)]}


def model(name: str, created: int, max_model_len: int | None) -> dict[str, Any]:
    """One served model."""
    return {"id": name, "object": "model", "created": created, "owned_by": "v4serve", "max_model_len": max_model_len}


def route(pairs: Sequence[tuple[str, str]], cached: int, reason: str) -> str:
    """The `x-v4serve-route` header: the pairs that serve the prompts, each once."""
    prefill = ",".join(dict.fromkeys(p for p, _ in pairs))
    decode = ",".join(dict.fromkeys(d for _, d in pairs))
    return f"prefill={prefill}; decode={decode}; cached={cached}; reason={reason}"
