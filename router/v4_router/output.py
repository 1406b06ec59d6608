"""From tokens to what a client reads, for one choice: text, reasoning apart, stop strings. Pure."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from v4_core.v1 import worker_pb2 as pb
from v4_router.detokenizer import Detokenizer
from v4_router.generation import Emit
from v4_router.stops import StopMatcher

_LOWEST_LOGPROB = -9999.0  # JSON has no minus infinity


@dataclass(slots=True)
class Delta:
    """What one Emit adds to a choice."""

    choice: int
    text: str
    reasoning: str
    ids: list[int]
    logprobs: list[pb.TokenLogprobs] = field(default_factory=list)
    finish: str | None = None


class ChoiceOutput:
    """One choice as it grows. Stop strings are looked for in the answer, not in the reasoning before it."""

    def __init__(
        self, choice: int, token_bytes: Sequence[bytes], stops: tuple[str, ...], think_end: int | None
    ) -> None:
        """`think_end`: the token that ends the reasoning which the choice begins with; None if it begins with none."""
        self.choice = choice
        self.tokens = 0
        self.finish: str | None = None
        self._think_end = think_end
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopMatcher(stops)

    def push(self, emit: Emit) -> Delta:
        """Adds tokens. When a stop string ends the choice, the delta stops with the token that completed it."""
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
            shown, stopped = self._stops.push(piece)
            text += shown
            if stopped:
                return self._delta(text, reasoning, emit, used, "stop")
        if emit.finish:
            rest = self._detokenizer.flush()
            if self._think_end is not None:
                reasoning += rest
            else:
                shown, stopped = self._stops.push(rest)
                text += shown if stopped else shown + self._stops.flush()
        return self._delta(text, reasoning, emit, len(emit.ids), emit.finish)

    def _delta(self, text: str, reasoning: str, emit: Emit, used: int, finish: str | None) -> Delta:
        self.tokens += used
        self.finish = finish
        return Delta(self.choice, text, reasoning, emit.ids[:used], emit.logprobs[:used], finish)


class LogprobWriter:
    """Log-probabilities in both shapes of the OpenAI interface."""

    def __init__(self, token_bytes: Sequence[bytes], names: dict[int, str]) -> None:
        """`names`: of the tokens that have no text of their own."""
        self._bytes = token_bytes
        self._names = names

    def chat(self, ids: list[int], logprobs: list[pb.TokenLogprobs]) -> dict[str, Any]:
        """`logprobs` of a chat choice."""
        content = []
        for token, entry in zip(ids, logprobs, strict=True):
            item = self._entry(token, entry.logprob)
            item["top_logprobs"] = [self._entry(t, p) for t, p in zip(entry.top_ids, entry.top_logprobs, strict=True)]
            content.append(item)
        return {"content": content, "refusal": None}

    def completion(self, ids: list[int], logprobs: list[pb.TokenLogprobs], offset: int) -> dict[str, Any]:
        """`logprobs` of a completion choice; `offset` is where the first token's text begins.

        As with OpenAI and vLLM, the sampled token is among its alternatives, which are one more where it is not among
        the likeliest. (A chat's are the likeliest alone; the sampled token stands beside them, whatever its rank.)
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
