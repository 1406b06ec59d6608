"""Turns the tokens of a choice into the text that its client reads, with reasoning and stop strings. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from v4_core.v1 import worker_pb2 as pb
from v4_router.detokenizer import Detokenizer
from v4_router.generation import Emit
from v4_router.stops import StopMatcher

_LOWEST_LOGPROB = -9999.0  # replaces minus infinity, which JSON cannot express


@dataclass(slots=True)
class Delta:
    """The text and tokens that one Emit adds to a choice."""

    choice: int
    text: str
    reasoning: str
    ids: list[int]
    logprobs: list[pb.TokenLogprobs] = field(default_factory=list)
    finish: str | None = None


class ChoiceOutput:
    """One growing choice. Stop strings apply to the answer, not to the reasoning before it."""

    def __init__(
        self, choice: int, token_bytes: Sequence[bytes], stops: tuple[str, ...], think_end: int | None
    ) -> None:
        """`think_end`: the token that ends the choice's reasoning; None if the choice has no reasoning."""
        self.choice = choice
        self.tokens = 0
        self.finish: str | None = None
        self._think_end = think_end
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopMatcher(stops)

    def push(self, emit: Emit) -> Delta:
        """Adds tokens, and returns what they add to the choice.

        If a stop string ends the choice, the delta ends with the token that completed the stop string.
        """
        text = reasoning = ""
        for used, token in enumerate(emit.ids, 1):
            if token == self._think_end:
                reasoning += self._detokenizer.flush()
                self._think_end = None
                continue
            piece = self._detokenizer.push(token)
            if self._think_end is not None:
                reasoning += piece
                continue
            released, stopped = self._stops.push(piece)
            text += released
            if stopped:
                return self._delta(text, reasoning, emit, used, "stop")
        if emit.finish:
            rest = self._detokenizer.flush()
            if self._think_end is not None:
                reasoning += rest
            else:
                released, stopped = self._stops.push(rest)
                text += released if stopped else released + self._stops.flush()
        return self._delta(text, reasoning, emit, len(emit.ids), emit.finish)

    def _delta(self, text: str, reasoning: str, emit: Emit, used: int, finish: str | None) -> Delta:
        self.tokens += used
        self.finish = finish
        return Delta(self.choice, text, reasoning, emit.ids[:used], emit.logprobs[:used], finish)


class LogprobWriter:
    """Writes log-probabilities in the shapes of the two OpenAI routes."""

    def __init__(self, token_bytes: Sequence[bytes], names: dict[int, str]) -> None:
        """`token_bytes`: bytes by token id. `names`: name by token id, for tokens without text."""
        self._bytes = token_bytes
        self._names = names

    def chat(self, ids: list[int], logprobs: list[pb.TokenLogprobs]) -> dict[str, Any]:
        """Returns the field `logprobs` of a chat choice."""
        content = []
        for token, entry in zip(ids, logprobs, strict=True):
            item = self._entry(token, entry.logprob)
            item["top_logprobs"] = [self._entry(t, p) for t, p in zip(entry.top_ids, entry.top_logprobs, strict=True)]
            content.append(item)
        return {"content": content, "refusal": None}

    def completion(self, ids: list[int], logprobs: list[pb.TokenLogprobs], offset: int) -> dict[str, Any]:
        """Returns the field `logprobs` of a completion choice. `offset`: characters of text before the first token.

        As with OpenAI and vLLM, `top_logprobs` always contains the sampled token, and so has one more entry if the
        sampled token is not among the likeliest. (In a chat, `top_logprobs` has the likeliest tokens only, and the
        sampled token is given beside them.)
        """
        tokens = [self._text(token) for token in ids]
        offsets = []
        for text in tokens:
            offsets.append(offset)
            offset += len(text)
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(entry.logprob) for entry in logprobs],
            "top_logprobs": [
                {self._text(t): _finite(p) for t, p in zip(e.top_ids, e.top_logprobs, strict=True)}
                | {text: _finite(e.logprob)}
                for text, e in zip(tokens, logprobs, strict=True)
            ],
            "text_offset": offsets,
        }

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._raw(token)
        text = raw.decode("utf-8", errors="replace")
        return {"token": text, "logprob": _finite(logprob), "bytes": list(raw)}

    def _raw(self, token: int) -> bytes:
        if token in self._names:
            return self._names[token].encode()
        return self._bytes[token] if token < len(self._bytes) else b""

    def _text(self, token: int) -> str:
        return self._raw(token).decode("utf-8", errors="replace")


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else _LOWEST_LOGPROB
