"""`v4serve demo`: starts a deployment, sends the same chat twice, prints a table of both requests, and stops."""

import asyncio
import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

from v4_cli.errors import FAILURE, DeploymentError, needs
from v4_cli.local import LOGS, Command, LocalDeployment, own_command
from v4_cli.options import Checkpoint, ConfigFile, Json
from v4_cli.output import print_json, print_rows
from v4_cli.processes import until_signal
from v4_cli.topology import LocalConfig, served_name
from v4_core.config import ModelConfig
from v4_core.settings import load

if TYPE_CHECKING:
    import httpx

_REQUEST_SECONDS = 120.0
_LOG_LINES = 40  # last lines of the processes, shown if the demo fails

# Long enough for several blocks of 256 tokens, so that the second request finds a cached prefix.
STORY = """\
There lived, some years ago, in a small house at the end of the village, an old gentleman of the name of Brown, who \
had been a captain at sea, and who had now nothing to do but to walk in his garden, to read the paper, and to talk \
with his sister about the weather. Miss Brown was a lady of good sense and of a very quiet temper; she had kept the \
house for her brother since the death of their mother, and she had never wished for any other life. Their nearest \
neighbour was Mrs. Green, a widow with two daughters, of whom the elder was handsome and the younger was clever; and \
hardly a day passed on which one or the other of them did not come through the little gate to drink tea with Miss \
Brown, and to ask the captain for a story.

One evening in the autumn, when the wind was high and the rain beat upon the windows, they were all sitting round \
the fire. The captain had just begun to tell them of a great storm, in which his ship had lost her masts and had been \
driven for three days towards a coast that nobody on board had ever seen, when there came a knock at the door. Nobody \
was expected at such an hour. Miss Brown looked at her brother; the young ladies looked at each other; and the dog, \
who had been asleep before the fire, got up and went slowly to the door. The captain took the candle and followed \
him. When he had opened it, he saw upon the step a young man without a hat, wet to the skin, who held a letter in \
his hand, and who asked him, in a voice that he seemed to know, whether this was the house of Captain Brown."""
MESSAGES = (
    {"role": "system", "content": "You tell stories in the manner of old novels."},
    {"role": "user", "content": f"{STORY}\n\nWhat happened next?"},
)
SAMPLING = {"max_tokens": 96, "temperature": 0.7, "top_p": 0.9, "seed": 7}


@dataclass(frozen=True)
class Exchange:
    """One request as its client saw it."""

    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int  # tokens of the prompt that were found in the prefix cache
    ttft_seconds: float  # from sending the request to receiving the first text
    itl_seconds: float | None  # mean time between two tokens; None if there were fewer than two
    transfer_bytes: int | None  # of the cache, from prefill to decode; None without a transfer
    transfer_seconds: float | None  # None without a transfer
    text: str


def demo(*, model: Checkpoint = None, config: ConfigFile = None, json: Json = False) -> None:
    """Start a deployment, stream the answer to a chat, send the same prompt again, compare both requests, and stop.

    The --config file has the same settings as that of `v4serve local`.
    """
    with needs("local"):
        import httpx  # noqa: F401, PLC0415
    settings = load(LocalConfig, config, {"model": model, "port": 0})
    ModelConfig.from_path(settings.model)
    exchanges = asyncio.run(until_signal(run_demo(settings, show=not json)))
    if exchanges is None:
        raise typer.Exit(FAILURE)  # interrupted
    if json:
        print_json([asdict(one) for one in exchanges])
    else:
        print_rows("The same prompt twice", [row(i, one) for i, one in enumerate(exchanges, start=1)])


async def run_demo(config: LocalConfig, *, show: bool, command: Command = own_command) -> list[Exchange]:
    """Returns both requests. `show`: whether to stream the first answer to stdout. Raises DeploymentError."""
    log: deque[tuple[str, str]] = deque(maxlen=_LOG_LINES)
    status = Console(stderr=True).status(
        f"starting a router, {config.prefill} prefill and {config.decode} decode workers"
    )
    try:
        status.start()
        async with LocalDeployment(config, log=lambda name, line: log.append((name, line)), command=command) as one:
            status.stop()
            return await _ask_twice(one.url, served_name(config.model), show)
    except DeploymentError:
        for name, line in log:
            LOGS[config.log_format](name, line)
        raise
    finally:
        status.stop()


async def _ask_twice(url: str, name: str, show: bool) -> list[Exchange]:
    import httpx  # noqa: PLC0415

    body = {"model": name, "messages": MESSAGES, **SAMPLING}
    async with httpx.AsyncClient(base_url=url, timeout=_REQUEST_SECONDS, trust_env=False) as client:
        if show:
            print(f"> ... {MESSAGES[-1]['content'].splitlines()[-1]}\n", flush=True)
        first = await _ask(client, body, lambda text: print(text, end="", flush=True) if show else None)
        if show:
            print("\n", flush=True)
        return [first, await _ask(client, body, lambda text: None)]


async def _ask(client: "httpx.AsyncClient", body: dict[str, Any], on_text: Callable[[str], None]) -> Exchange:
    import httpx  # noqa: PLC0415

    arrivals: list[tuple[float, dict[str, Any]]] = []
    started = time.monotonic()
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    try:
        async with client.stream(
            "POST", "/v1/chat/completions", json=asked, headers={"x-v4serve-timing": "1"}
        ) as response:
            if response.status_code != 200:
                raise DeploymentError(
                    f"the router answered {response.status_code}: {(await response.aread()).decode()}"
                )
            async for event in events(response.aiter_lines()):
                arrivals.append((time.monotonic() - started, event))
                on_text(text_of(event))
    except httpx.HTTPError as error:
        raise DeploymentError(f"the stream of the answer failed: {error!r}") from error
    return exchange(arrivals)


async def events(lines: AsyncIterator[str]) -> AsyncIterator[dict[str, Any]]:
    """Yields the JSON of each server-sent event until [DONE].

    Raises DeploymentError if there is an error event, or if the stream ends without [DONE].
    """
    async for line in lines:
        if not line.startswith("data: "):
            continue
        if line == "data: [DONE]":
            return
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise DeploymentError(f"the stream of the answer ended with an error: {event['error']['message']}")
        yield event
    raise DeploymentError("the stream of the answer ended without [DONE] and without an error")


def text_of(event: dict[str, Any]) -> str:
    """Returns the text that an event adds to the answer."""
    return "".join(choice["delta"].get("content") or "" for choice in event["choices"])


def exchange(arrivals: Sequence[tuple[float, dict[str, Any]]]) -> Exchange:
    """Returns the figures of a stream, given its events and the seconds from the request to each of them.

    The last event has the usage.
    """
    texts = [(seconds, text) for seconds, event in arrivals if (text := text_of(event))]
    _, last = arrivals[-1]
    usage = last["usage"]
    generated: int = usage["completion_tokens"]
    moved = last["v4serve"]["ways"][0]["transfer"] or {}
    first, end = (texts[0][0], texts[-1][0]) if texts else (arrivals[0][0], arrivals[0][0])
    return Exchange(
        prompt_tokens=usage["prompt_tokens"],
        generated_tokens=generated,
        cached_tokens=usage["prompt_tokens_details"]["cached_tokens"],
        ttft_seconds=first,
        itl_seconds=(end - first) / (generated - 1) if generated > 1 else None,
        transfer_bytes=moved.get("bytes"),
        transfer_seconds=moved.get("seconds"),
        text="".join(text for _, text in texts),
    )


def row(number: int, one: Exchange) -> dict[str, str]:
    """Returns one row of the table: value by column."""

    def milliseconds(seconds: float | None) -> str:
        if seconds is None:
            return "-"
        return f"{1000 * seconds:.{1 if seconds < 0.1 else 0}f} ms"

    return {
        "#": str(number),
        "prompt": f"{one.prompt_tokens:,}",
        "cached": f"{one.cached_tokens:,}",
        "output": f"{one.generated_tokens:,}",
        "TTFT": milliseconds(one.ttft_seconds),
        "ITL": milliseconds(one.itl_seconds),
        "KV moved": "-" if one.transfer_bytes is None else f"{one.transfer_bytes / 1e6:.2f} MB",
        "in": milliseconds(one.transfer_seconds),
    }
