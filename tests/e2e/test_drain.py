"""Workers are terminated under load: every stream completes with the right tokens, and all memory is freed."""

import asyncio
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI

from tests.e2e.deployment import local, model_folder, reference_engine
from tests.e2e.test_local import nothing_held
from tests.worker.cluster import GREEDY, until
from v4_cli.local import LocalDeployment
from v4_engine.engine import Engine
from v4_engine.generate import output_ids
from v4_engine.sequence import Request

STREAMS = 6


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def offline(model: Path) -> Engine:
    """The offline engine whose output answers are compared with."""
    return reference_engine(model)


class Stream:
    """One greedy stream, and the workers that it started on."""

    def __init__(self, number: int, length: int, max_tokens: int) -> None:
        self.ids = [(number * 31 + i) % 380 + 2 for i in range(length)]
        self.max_tokens = max_tokens
        self.tokens: list[int] = []
        self.route: dict[str, str] = {}

    async def run(self, client: AsyncOpenAI) -> None:
        """Send the request and collect its tokens until the stream ends."""
        raw = await client.completions.with_raw_response.create(
            model="tiny",
            prompt=self.ids,
            max_tokens=self.max_tokens,
            temperature=0,
            stream=True,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        parts = (part.strip().partition("=") for part in raw.headers["x-v4serve-route"].split(";"))
        self.route = {name: value for name, _, value in parts}
        async for chunk in raw.parse():
            for choice in chunk.choices:
                self.tokens += choice.token_ids or []  # type: ignore[attr-defined]

    def check(self, engine: Engine) -> None:
        """Assert that the tokens are those of an undisturbed stream."""
        request = Request(("offline", 0), "whole", self.ids, max_tokens=self.max_tokens, sampling=GREEDY)
        assert self.tokens == list(output_ids(engine, request)[0])


async def run_while(
    deployment: LocalDeployment, streams: list[Stream], disturb: Callable[[list[Stream]], Awaitable[None]]
) -> None:
    """Run all streams until they end, and call `disturb` while they run."""
    async with AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        tasks = [asyncio.create_task(stream.run(client)) for stream in streams]
        await disturb(streams)
        await asyncio.wait_for(asyncio.gather(*tasks), 120)


def decode_of(deployment: LocalDeployment, stream: Stream) -> int:
    """Return the number of the decode worker that a stream started on."""
    return [deployment.addresses[f"decode-{i}"] for i in (0, 1)].index(stream.route["decode"])


async def terminate(deployment: LocalDeployment, role: Any, index: int) -> None:
    """Send a worker SIGTERM and wait until it exits with code 0."""
    await deployment.kill(role, index, signal.SIGTERM)
    assert await deployment._child(role, index).wait() == 0


async def metric(deployment: LocalDeployment, name: str) -> float:
    """Return the sum of a counter of the router over its labels."""
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"{deployment.url}/metrics")).text
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(name))


async def test_a_terminated_decode_worker_finishes_its_streams_within_its_time(model: Path, offline: Engine) -> None:
    async with local(model, 1, 2, drain_seconds=60.0) as deployment:

        async def disturb(streams: list[Stream]) -> None:
            await until(lambda: all(len(stream.tokens) > 5 for stream in streams))
            await terminate(deployment, "decode", decode_of(deployment, streams[0]))

        streams = [Stream(i, 50, 250) for i in range(2)]
        await run_while(deployment, streams, disturb)
        for stream in streams:
            stream.check(offline)
        assert await metric(deployment, "v4serve_migrations_total") == 0
        later = [Stream(7, 50, 20)]
        await run_while(deployment, later, lambda _: asyncio.sleep(0))
        later[0].check(offline)


async def test_streams_that_a_terminated_decode_worker_hands_back_go_on_elsewhere(model: Path, offline: Engine) -> None:
    async with local(model, 1, 2, drain_seconds=0.5) as deployment:

        async def disturb(streams: list[Stream]) -> None:
            await until(lambda: all(len(stream.tokens) > 5 for stream in streams))
            began = time.monotonic()
            await terminate(deployment, "decode", decode_of(deployment, streams[0]))
            assert time.monotonic() - began < 20.0

        streams = [Stream(i, 300 + i, 600) for i in range(STREAMS)]
        await run_while(deployment, streams, disturb)
        for stream in streams:
            stream.check(offline)
        left = sum(stream.route["decode"] == streams[0].route["decode"] for stream in streams)
        assert await metric(deployment, "v4serve_migrations_total") == left
        assert await metric(deployment, "v4serve_retries_total") == 0, "a stream that is handed back has not failed"
        await nothing_held(deployment.url)


async def test_a_terminated_prefill_worker_loses_no_stream(model: Path, offline: Engine) -> None:
    async with local(model, 2, 2, drain_seconds=0.5, chunk_tokens=64) as deployment:

        async def disturb(streams: list[Stream]) -> None:
            await until(lambda: any(stream.tokens for stream in streams))  # meanwhile others wait, compute or transfer
            await terminate(deployment, "prefill", 0)

        streams = [Stream(i, 1500 + 10 * i, 20) for i in range(2 * STREAMS)]
        await run_while(deployment, streams, disturb)
        for stream in streams:
            stream.check(offline)
        await nothing_held(deployment.url)


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_a_second_signal_ends_it_at_once(model: Path, offline: Engine, role: str) -> None:
    async with local(model, 2, 2, drain_seconds=60.0) as deployment:

        async def disturb(streams: list[Stream]) -> None:
            await until(lambda: all(len(stream.tokens) > 5 for stream in streams))
            deployment._child(role, 0).send(signal.SIGTERM)  # type: ignore[arg-type]
            began = time.monotonic()
            await terminate(deployment, role, 0)
            assert time.monotonic() - began < 20.0

        streams = [Stream(i, 300, 200) for i in range(STREAMS)]
        await run_while(deployment, streams, disturb)
        for stream in streams:
            stream.check(offline)
