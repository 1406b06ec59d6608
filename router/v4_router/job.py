"""Turns a validated body into generations. Defaults and limits of requests are applied only here."""

import random
from dataclasses import dataclass

import numpy as np

from v4_core.sampling import Sampling
from v4_core.tracing import NO_CONTEXT, Context
from v4_router.chat import Message, Mode, Segment, encode_chat
from v4_router.errors import BadRequest, UnknownModel
from v4_router.fleet import AdmissionLimits
from v4_router.generation import GenerationRequest
from v4_router.schemas import ChatBody, ChatTemplateKwargs, CompletionBody
from v4_router.tokenizer import Tokenizer

MAX_CHOICES = 128  # per request, over all of its prompts


@dataclass(frozen=True)
class Ticket:
    """What is known of a request independently of its body."""

    id: str  # unique; workers and the answer use the same id
    deadline: float  # seconds on the event loop's clock
    tenant: str = ""  # tenant of the request's API key; empty if the router has no keys
    trace: Context = NO_CONTEXT  # context of the request's span; empty if tracing is off


@dataclass(frozen=True)
class Job:
    """One request, in the form that both API routes share."""

    chat: bool
    thinking: bool  # whether the answer begins with reasoning
    prompts: tuple[GenerationRequest, ...]
    n: int
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool
    return_token_ids: bool
    top_logprobs: int | None  # number of alternatives per token; None = no logprobs


def check_model(body: ChatBody | CompletionBody, served_name: str) -> None:
    """Raises UnknownModel if the body names a model other than `served_name`."""
    if body.model not in (None, served_name):
        raise UnknownModel(f"the model {body.model!r} is not served here: use {served_name!r}", "model")


async def prepare(
    body: ChatBody | CompletionBody, ticket: Ticket, mode: Mode, tokenizer: Tokenizer, limits: AdmissionLimits
) -> Job:
    """Encodes the prompts, checks them against the limits and fills in defaults. `mode` is the model's default.

    Raises BadRequest.
    """
    if body.stream_options is not None and not body.stream:
        raise BadRequest("stream_options needs stream=true", "stream_options")
    n = body.n or 1
    if 0 < limits.sequences < n:
        raise BadRequest(
            f"n is {n}, but a decode worker runs at most {limits.sequences} sequences: ask for fewer choices", "n"
        )
    if isinstance(body, ChatBody):
        mode = _mode(body.chat_template_kwargs or ChatTemplateKwargs(), mode)
        prompts = [await tokenizer.encode_segments(_segments(body, mode))]
        top = _chat_logprobs(body)
    else:
        prompts = [p if isinstance(p, bytes) else await tokenizer.encode_raw(p) for p in body.prompt]
        top = body.logprobs
    if n * len(prompts) > MAX_CHOICES:
        raise BadRequest(f"{len(prompts)} prompts with n={n} are more than {MAX_CHOICES} choices: ask for fewer", "n")
    chat = isinstance(body, ChatBody)
    return Job(
        chat=chat,
        thinking=chat and mode == "thinking",
        prompts=tuple(_generation(body, ticket, i, prompt, top, limits) for i, prompt in enumerate(prompts)),
        n=n,
        stops=(body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ()),
        stream=bool(body.stream),
        include_usage=body.stream_options is not None and body.stream_options.include_usage,
        return_token_ids=bool(body.return_token_ids),
        top_logprobs=top,
    )


def _mode(kwargs: ChatTemplateKwargs, default: Mode) -> Mode:
    asked = {value for value in (kwargs.thinking, kwargs.enable_thinking) if value is not None}
    if len(asked) > 1:
        raise BadRequest(
            "chat_template_kwargs: thinking and enable_thinking contradict each other: give one of them",
            "chat_template_kwargs",
        )
    if not asked:
        return default
    return "thinking" if asked.pop() else "chat"


def _segments(body: ChatBody, mode: Mode) -> list[Segment]:
    messages = []
    for i, m in enumerate(body.messages):
        if m.reasoning_content is not None and m.role != "assistant":
            where = f"messages[{i}].reasoning_content"
            raise BadRequest(f"{where} is allowed in assistant messages only: leave it out", where)
        text = m.content if isinstance(m.content, str) else "\n\n".join(part.text for part in m.content)
        messages.append(Message(m.role, text, m.reasoning_content or ""))
    keep = body.chat_template_kwargs is not None and not body.chat_template_kwargs.drop_thinking
    return encode_chat(messages, mode, keep)


def _chat_logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            raise BadRequest("top_logprobs needs logprobs=true", "top_logprobs")
        return None
    return body.top_logprobs or 0


def _generation(
    body: ChatBody | CompletionBody, ticket: Ticket, index: int, prompt: bytes, top: int | None, limits: AdmissionLimits
) -> GenerationRequest:
    asked = body.max_tokens
    if isinstance(body, ChatBody) and body.max_completion_tokens is not None:
        asked = body.max_completion_tokens
    return GenerationRequest(
        id=f"{ticket.id}-{index}" if index else ticket.id,
        prompt=prompt,
        n=body.n or 1,
        max_tokens=_max_tokens(prompt, asked, "messages" if isinstance(body, ChatBody) else "prompt", limits),
        sampling=_sampling(body, top, limits),
        deadline=ticket.deadline,
        ignore_eos=bool(body.ignore_eos),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        tenant=ticket.tenant.encode(),
        trace=ticket.trace,
    )


def _max_tokens(prompt: bytes, asked: int | None, where: str, limits: AdmissionLimits) -> int:
    """Returns how many tokens may be generated. Raises BadRequest if the prompt or `asked` tokens do not fit."""
    tokens = len(prompt) // 4
    if tokens > limits.max_model_len - 1:
        raise BadRequest(
            f"the prompt has {tokens} tokens, but may have at most {limits.max_model_len - 1}, so that one token can "
            "be generated: shorten it",
            where,
        )
    if (highest := int(np.frombuffer(prompt, np.uint32).max())) >= limits.vocab_size:
        raise BadRequest(f"token id {highest} is outside the vocabulary of {limits.vocab_size} tokens", where)
    room = limits.max_model_len - tokens
    if asked is not None and asked > room:
        raise BadRequest(
            f"max_tokens is {asked}, but the prompt's {tokens} tokens leave {room} of the {limits.max_model_len} that "
            "prompt and answer may have together: ask for fewer",
            "max_tokens",
        )
    return room if asked is None else asked


def _sampling(body: ChatBody | CompletionBody, top: int | None, limits: AdmissionLimits) -> Sampling:
    return Sampling(
        temperature=1.0 if body.temperature is None else body.temperature,
        top_k=max(0, body.top_k or 0),
        top_p=1.0 if body.top_p is None else body.top_p,
        min_p=body.min_p or 0.0,
        seed=random.getrandbits(64) if body.seed is None else body.seed % (1 << 64),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        repetition_penalty=1.0 if body.repetition_penalty is None else body.repetition_penalty,
        logit_bias=_bias(body.logit_bias or {}, limits),
        logprobs=top,
    )


def _bias(named: dict[str, float], limits: AdmissionLimits) -> dict[int, float]:
    result = {}
    for key, value in named.items():
        if not (key.isascii() and key.isdigit()) or len(key) > 10 or int(key) >= limits.vocab_size:
            raise BadRequest(f"logit_bias key {key[:100]!r} is not a token id of this model", "logit_bias")
        result[int(key)] = value
    return result
