"""Clients that stream without a pause while a test changes things, and what became of each of their streams.

Every stream has a connection of its own and no second try: what the service does not forgive, shows.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from openai import AsyncOpenAI, OpenAIError

from tests.cluster.answers import Answers

_STREAM_SECONDS = 120.0  # that a token may take
_PAUSE_SECONDS = 0.2  # after a failure, so that an outage does not become a storm
_END_SECONDS = 300.0


@dataclass
class Stream:
    """One request of a client."""

    prompt: str
    began: float  # time.monotonic()
    ended: float = 0.0
    ids: list[int] = field(default_factory=list)
    error: str = ""


class Load:
    """So many clients, in a thread of their own from `with` to its end; then every stream has come to its own end."""

    def __init__(self, url: str, key: str, model: str, answers: Sequence[Answers], clients: int = 4) -> None:
        """`url` is the service's, without /v1. Right is a stream that is wholly one of the `answers` to its prompt."""
        self._url, self._key = f"{url}/v1", key
        self._model, self._answers, self.clients = model, answers, clients
        self._prompts = sorted(set.intersection(*(set(known) for known in answers)))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._crash: BaseException | None = None
        self.streams: list[Stream] = []

    def __enter__(self) -> "Load":
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join(_END_SECONDS)
        assert not self._thread.is_alive(), "streams do not come to an end"
        if self._crash and not error:
            raise self._crash

    def finished(self, since: float) -> int:
        """Streams that began after a time and came to a good end."""
        return sum(stream.began >= since and stream.ended > 0 and not stream.error for stream in self.streams)

    @property
    def flowing(self) -> bool:
        """Whether every client has a stream that gave a token by now."""
        open_streams = [stream for stream in self.streams if not stream.ended]
        return len(open_streams) == self.clients and all(stream.ids for stream in open_streams)

    def failed(self) -> list[Stream]:
        """Streams that did not come to a good end."""
        return [stream for stream in self.streams if stream.error]

    def wrong(self) -> list[Stream]:
        """Streams whose tokens are no right answer; of a failed one, the beginning counts."""
        return [stream for stream in self.streams if not any(_fits(stream, known) for known in self._answers)]

    def _run(self) -> None:
        try:
            asyncio.run(self._work())
        except BaseException as error:
            self._crash = error
            raise

    async def _work(self) -> None:
        client = AsyncOpenAI(
            base_url=self._url,
            api_key=self._key,
            max_retries=0,
            timeout=_STREAM_SECONDS,
            default_headers={"connection": "close"},
        )
        async with client:
            await asyncio.gather(*(self._client(client, number) for number in range(self.clients)))

    async def _client(self, client: AsyncOpenAI, number: int) -> None:
        while not self._stop.is_set():
            stream = Stream(self._prompts[number % len(self._prompts)], time.monotonic())
            self.streams.append(stream)
            try:
                await self._stream(client, stream)
            except OpenAIError as error:
                stream.error = f"{type(error).__name__}: {error}; {error.__cause__!r}"
            stream.ended = time.monotonic()
            if stream.error:
                await asyncio.sleep(_PAUSE_SECONDS)
            number += self.clients + 1

    async def _stream(self, client: AsyncOpenAI, stream: Stream) -> None:
        tokens = len(self._answers[0][stream.prompt])
        body: dict[str, Any] = {"model": self._model, "prompt": stream.prompt, "max_tokens": tokens}
        more = {"ignore_eos": True, "return_token_ids": True}
        finish = None
        async for chunk in await client.completions.create(**body, temperature=0, stream=True, extra_body=more):
            for choice in chunk.choices:
                stream.ids += choice.token_ids or []
                finish = choice.finish_reason or finish
        if finish != "length":
            stream.error = f"finish_reason is {finish}"


def _fits(stream: Stream, known: Answers) -> bool:
    right = list(known[stream.prompt])
    return stream.ids == (right[: len(stream.ids)] if stream.error else right)
