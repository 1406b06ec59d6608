"""Converts between messages of the worker protocol and records of the engine. Pure."""

from collections.abc import Iterable

from v4_core.blocks import unpack_ids
from v4_core.errors import RequestError
from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb
from v4_engine.events import Token
from v4_engine.sampler import Drawn
from v4_engine.sequence import Finish, Phase, Request

_PHASES: dict[int, Phase] = {pb.WHOLE: "whole", pb.PREFILL: "prefill", pb.DECODE: "decode"}
FINISHES: dict[Finish | None, pb.Finish] = {None: pb.NOT_FINISHED, "stop": pb.STOP, "length": pb.LENGTH}
_FINISH_OF: dict[int, Finish | None] = {pb.NOT_FINISHED: None, pb.STOP: "stop", pb.LENGTH: "length"}


def request_of(start: pb.Start, serial: int, fingerprint: str, eos: Iterable[int]) -> Request:
    """The engine's request for a Start; the engine validates it. Raises RequestError if the message is malformed."""
    if not start.HasField("sampling"):
        raise RequestError("the request has no sampling parameters")
    stop_ids = frozenset(start.stop_token_ids) | frozenset(() if start.ignore_eos else eos)
    return Request(
        key=(start.request, start.attempt, serial),
        phase=_PHASES[start.phase],
        prompt=_ids(start.prompt_ids),
        output=_ids(start.output_ids),
        n=start.n,
        first_choice=start.first_choice,
        max_tokens=start.max_tokens,
        stop_ids=stop_ids,
        sampling=Sampling.from_proto(start.sampling),
        salt=fingerprint.encode() + b"/" + start.tenant,
    )


def _ids(packed: bytes) -> list[int]:
    try:
        return unpack_ids(packed)
    except ValueError:
        raise RequestError("packed token ids must be a multiple of 4 bytes") from None


def event_of(request: Request, **kind: object) -> pb.Event:
    """An event of a request, e.g. event_of(r, started=pb.Started(...))."""
    return pb.Event(request=request.key[0], attempt=request.key[1], **kind)  # type: ignore[arg-type]


def failed_event(request: Request, reason: pb.Reason, message: str) -> pb.Event:
    """The event for a leg that ended without finishing."""
    return event_of(request, failed=pb.Failed(reason=reason, message=message))


def token_event(token: Token) -> pb.Event:
    """The event for one generated token."""
    message = pb.Tokens(
        choice=token.choice,
        start=token.index,
        ids=token.drawn.id.to_bytes(4, "little"),
        finish=FINISHES[token.finish],
    )
    if token.drawn.logprob is not None:
        message.logprobs.append(_logprobs(token.drawn))
    return event_of(token.request, tokens=message)


def first_of(token: Token) -> pb.First:
    """A choice's first token, as the last frame of a pull carries it."""
    first = pb.First(choice=token.choice, id=token.drawn.id, finish=FINISHES[token.finish])
    if token.drawn.logprob is not None:
        first.logprobs.CopyFrom(_logprobs(token.drawn))
    return first


def firsts_of(final: pb.Final, request: Request) -> dict[int, tuple[int, Finish | None]]:
    """The first token and the finish reason of each choice, by choice.

    Raises RequestError unless there is exactly one for each choice of the request.
    """
    firsts = {first.choice: (first.id, _FINISH_OF[first.finish]) for first in final.firsts}
    wanted = set(range(request.first_choice, request.first_choice + request.n))
    if set(firsts) != wanted or len(final.firsts) != request.n:
        raise RequestError(
            f"the cache has first tokens of choices {sorted(firsts)}, but the request has choices {sorted(wanted)}"
        )
    return firsts


def _logprobs(drawn: Drawn) -> pb.TokenLogprobs:
    ids, values = zip(*drawn.top, strict=True) if drawn.top else ((), ())
    return pb.TokenLogprobs(logprob=drawn.logprob or 0.0, top_ids=ids, top_logprobs=values)
