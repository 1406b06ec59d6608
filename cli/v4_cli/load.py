"""`v4serve load`: runs clients that chat with a router for some seconds, and reports what they measured.

A conversation begins with one of a few long texts, which all clients share, and has several turns. So prompts share
prefixes, and prompts and answers have mixed lengths. Each client draws its questions from a fixed seed: two runs differ
only in timing and in the model's answers.
"""

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from json import loads
from math import ceil
from random import Random
from typing import TYPE_CHECKING, Annotated, Any

import typer

from v4_cli.demo import STORY, events, text_of
from v4_cli.errors import FAILURE, DeploymentError, Unreachable, needs
from v4_cli.figures import count, duration, number, percent, rate
from v4_cli.options import Json
from v4_cli.output import print_facts, print_json
from v4_cli.processes import until_signal
from v4_cli.top import URL, base
from v4_core.errors import ConfigError

if TYPE_CHECKING:
    import httpx

_REQUEST_SECONDS = 120.0
_PAUSE_SECONDS = 0.5  # back-off after an error, so that an outage does not cause a storm of requests
_TEXTS = (1, 2, 4, 8)  # lengths of the shared texts, in units of 100 words
_ANSWERS = (16, 32, 64, 128)  # values of max_tokens
_TURNS = 3
_SAMPLING = {"temperature": 0.7, "chat_template_kwargs": {"thinking": False}}
_ERRORS_SHOWN = 5  # kinds of errors
_TOKENS_PER_WORD = 2  # upper bound for the words used, to compute what fits in a context
_START = "start a router with `make serve`, or on Kubernetes run kubectl port-forward service/NAME 8000:80"
KEY = "V4SERVE_API_KEY"

Message = dict[str, str]


@dataclass
class Measured:
    """What the clients measured."""

    seconds: float = 0.0
    requests: int = 0  # that succeeded
    errors: Counter[str] = field(default_factory=Counter)
    prompt_tokens: int = 0
    cached_tokens: int = 0
    generated_tokens: int = 0
    ttft: list[float] = field(default_factory=list)  # seconds until the first text
    itl: list[float] = field(default_factory=list)  # seconds between two pieces of text


def load(
    url: Annotated[str, typer.Argument(help="URL of a router's API.")] = URL,
    *,
    clients: Annotated[int, typer.Option(help="Number of concurrent conversations.")] = 4,
    seconds: Annotated[
        float, typer.Option(help="How long new requests are sent; requests that run at the end are completed.")
    ] = 30.0,
    json: Json = False,
) -> None:
    """Chat with a router from several clients, and report errors, TTFT, ITL and tokens as the clients see them.

    Prompts share prefixes and have mixed lengths. Ctrl-C ends it early. The exit code is 1 if a request failed.

    The environment variable V4SERVE_API_KEY is the API key, if the router demands one.
    """
    url = base(url)
    if clients < 1 or not seconds > 0:
        raise ConfigError(f"--clients is {clients} and --seconds {seconds:g}: give at least 1 and more than 0")
    with needs("local"):
        import httpx  # noqa: F401, PLC0415
    measured = Measured()
    began = time.monotonic()
    asyncio.run(until_signal(_run(url, clients, seconds, measured)))
    measured.seconds = time.monotonic() - began
    facts = summary(measured)
    if json:
        print_json(facts)
    else:
        print_facts(f"{count(clients, 'client')}, {measured.seconds:.0f} s", rows(facts))
    if measured.errors:
        raise typer.Exit(FAILURE)


async def _run(url: str, clients: int, seconds: float, measured: Measured) -> None:
    """Runs the clients. Raises Unreachable if no router answers at the beginning."""
    import httpx  # noqa: PLC0415

    key = os.environ.get(KEY)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=_REQUEST_SECONDS, limits=limits, trust_env=False
    ) as client:
        name, context = await _model(client, url)
        if sys.stderr.isatty():
            print(f"{count(clients, 'client')} for {seconds:g} s against {url}; Ctrl-C ends it early", file=sys.stderr)
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for seed in range(clients):
                group.create_task(_converse(client, name, context, Random(seed), end, measured))


async def _model(client: "httpx.AsyncClient", url: str) -> tuple[str, int]:
    """Returns the name and the context length in tokens of the served model; 0 if the length is unknown."""
    import httpx  # noqa: PLC0415

    try:
        answer = await client.get("/v1/models")
    except httpx.HTTPError as error:
        raise Unreachable(url, str(error) or type(error).__name__, _START) from error
    if answer.status_code == 401:
        raise Unreachable(url, "it demands an API key", f"set the environment variable {KEY} to one")
    try:
        (model,) = answer.json()["data"]
        return model["id"], model["max_model_len"] or 0
    except (ValueError, KeyError, TypeError):
        raise Unreachable(url, f"it answers {answer.status_code} to /v1/models", _START) from None


async def _converse(
    client: "httpx.AsyncClient", name: str, context: int, random: Random, end: float, measured: Measured
) -> None:
    """Holds conversations one after another, until the time `end`, on the monotonic clock, after which none begins."""
    while True:
        messages = [{"role": "system", "content": random.choice(texts(context))}]
        for _ in range(_TURNS):
            if time.monotonic() >= end:
                return
            messages.append({"role": "user", "content": question(random)})
            body = {"model": name, "messages": messages, "max_tokens": random.choice(_ANSWERS), **_SAMPLING}
            try:
                answer = await _ask(client, body, measured)
            except DeploymentError as error:
                measured.errors[str(error)] += 1
                await asyncio.sleep(_PAUSE_SECONDS)
                break
            messages.append({"role": "assistant", "content": answer})


async def _ask(client: "httpx.AsyncClient", body: dict[str, Any], measured: Measured) -> str:
    """Returns the answer to one request, and adds its figures. Raises DeploymentError if the request fails."""
    import httpx  # noqa: PLC0415

    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    began = latest = time.monotonic()
    pieces: list[str] = []
    usage: dict[str, Any] = {}
    try:
        async with client.stream("POST", "/v1/chat/completions", json=asked) as response:
            if response.status_code != 200:
                raise DeploymentError(_refusal(response.status_code, await response.aread()))
            async for event in events(response.aiter_lines()):
                usage = event.get("usage") or usage
                if text := text_of(event):
                    now = time.monotonic()
                    (measured.itl if pieces else measured.ttft).append(now - (latest if pieces else began))
                    pieces.append(text)
                    latest = now
    except httpx.HTTPError as error:
        raise DeploymentError(f"{type(error).__name__}: {error}".removesuffix(": ")) from error
    if not usage:
        raise DeploymentError("the answer has no usage")
    measured.requests += 1
    measured.prompt_tokens += usage["prompt_tokens"]
    measured.cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    measured.generated_tokens += usage["completion_tokens"]
    return "".join(pieces)


def _refusal(status: int, body: bytes) -> str:
    try:
        return f"status {status}: {loads(body)['error']['message']}"
    except (ValueError, KeyError, TypeError):
        return f"status {status}"


def texts(context: int) -> list[str]:
    """Returns the shared texts that leave room for a conversation in a context of so many tokens; 0 = unknown."""
    words = STORY.split()
    room = (context - _TURNS * (max(_ANSWERS) + 100)) // _TOKENS_PER_WORD if context else 100 * max(_TEXTS)
    lengths = [100 * hundreds for hundreds in _TEXTS if 100 * hundreds <= room] or [max(1, room)]
    return [" ".join(_cycle(words, start, length)) for start, length in enumerate(lengths)]


def _cycle(words: Sequence[str], start: int, count: int) -> Iterator[str]:
    """Yields `count` words from index `start` on, continuing at the first word after the last one."""
    return (words[(start + i) % len(words)] for i in range(count))


def question(random: Random) -> str:
    """Returns a question of random words of the story, so that no two turns are likely to have the same prompt."""
    words = STORY.split()
    return f"What came after “{' '.join(random.choices(words, k=random.randint(4, 24)))}”?"


def summary(measured: Measured) -> dict[str, Any]:
    """Returns the figures of a run, with times in seconds; None for a quantile without values."""
    return {
        "seconds": measured.seconds,
        "requests": measured.requests,
        "errors": dict(measured.errors.most_common()),
        "prompt_tokens": measured.prompt_tokens,
        "cached_tokens": measured.cached_tokens,
        "generated_tokens": measured.generated_tokens,
        "ttft": {"p50": quantile(0.5, measured.ttft), "p99": quantile(0.99, measured.ttft)},
        "itl": {"p50": quantile(0.5, measured.itl), "p99": quantile(0.99, measured.itl)},
    }


def quantile(share: float, values: Sequence[float]) -> float | None:
    """Returns the least value that is not less than this share of the values; None if there are no values."""
    return sorted(values)[max(0, ceil(share * len(values)) - 1)] if values else None


def rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the rows of the summary's table."""
    seconds = facts["seconds"]
    cached = facts["cached_tokens"] / facts["prompt_tokens"] if facts["prompt_tokens"] else None
    errors = [("", f"{times:,} × {what}") for what, times in islice(facts["errors"].items(), _ERRORS_SHOWN)]
    return [
        ("requests", f"{number(facts['requests'])}, {rate(facts['requests'] / seconds)}"),
        ("errors", number(sum(facts["errors"].values()))),
        *errors,
        ("prompt tokens", f"{number(facts['prompt_tokens'])}, {rate(facts['prompt_tokens'] / seconds)}"),
        ("from cache", percent(cached)),
        ("generated tokens", f"{number(facts['generated_tokens'])}, {rate(facts['generated_tokens'] / seconds)}"),
        *(
            (title, f"p50 {duration(facts[name]['p50'])}, p99 {duration(facts[name]['p99'])}")
            for title, name in (("TTFT", "ttft"), ("ITL", "itl"))
        ),
    ]
