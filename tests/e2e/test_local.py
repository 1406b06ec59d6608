"""`v4serve local` as users run it: real processes, the official client, and failures under load."""

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from openai import APIStatusError, AsyncOpenAI

from tests.e2e.deployment import held, local, model_folder, reference, reference_engine
from tests.worker.cluster import until
from v4_cli.local import LocalDeployment
from v4_core.sampling import Sampling
from v4_engine.engine import Engine

REQUESTS = 50


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return model_folder(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def offline(model: Path) -> Engine:
    """The offline engine whose output answers are compared with."""
    return reference_engine(model)


@pytest.fixture
async def deployment(model: Path) -> AsyncIterator[LocalDeployment]:
    """A deployment of two prefill and two decode workers."""
    async with local(model, 2, 2) as running:
        yield running


@pytest.fixture
async def started(model: Path) -> AsyncIterator[LocalDeployment]:
    """The same deployment, with processes that are started as users start them, not forked."""
    async with LocalDeployment(local(model, 2, 2).config) as running:
        yield running


class Load:
    """One random request and its result."""

    def __init__(self, number: int) -> None:
        rng = random.Random(number)
        family, length = rng.randrange(6), rng.choice([3, 40, 257, 600, 900])
        base = random.Random(family)
        self.ids = [base.randrange(2, 390) for _ in range(length)]
        self.max_tokens = rng.choice([1, 8, 40, 120])
        self.temperature = rng.choice([0.0, 1.0])
        self.seed = number
        self.stream = rng.random() < 0.7
        self.leaves = rng.random() < 0.2
        self.tokens: list[int] = []
        self.finish: str | None = None
        self.refused = False

    async def run(self, client: AsyncOpenAI) -> None:
        """Send the request. Some clients disconnect before the end."""
        arguments = {
            "model": "tiny",
            "prompt": self.ids,
            "max_tokens": self.max_tokens,
            "temperature": self.temperature,
            "seed": self.seed,
            "extra_body": {"return_token_ids": True},
        }
        try:
            if not self.stream:
                answer = await client.completions.create(**arguments)  # type: ignore[call-overload]
                self.take(answer.choices[0])
                return
            stream = await client.completions.create(**arguments, stream=True)  # type: ignore[call-overload]
            async for chunk in stream:
                if chunk.choices:
                    self.take(chunk.choices[0])
                if self.leaves and self.tokens:
                    await stream.close()
                    return
        except APIStatusError as error:
            if error.status_code not in (429, 503):
                raise
            self.refused = True

    def take(self, choice: object) -> None:
        """Add the tokens of a choice."""
        self.tokens += choice.token_ids or []  # type: ignore[attr-defined]
        self.finish = choice.finish_reason or self.finish  # type: ignore[attr-defined]

    def check(self, engine: Engine) -> None:
        """Assert that no token is wrong, and that none is missing unless the client disconnected."""
        sampling = Sampling(temperature=self.temperature, seed=self.seed)
        expected = reference(engine, self.ids, self.max_tokens, sampling)[0]
        if self.leaves or self.refused:
            assert self.tokens == expected[: len(self.tokens)]
        else:
            assert self.tokens == expected
            assert self.finish == ("stop" if expected[-1] in engine.config.eos_token_ids else "length")


async def nothing_held(url: str) -> None:
    """Wait until every block, tail and lease is free."""
    end = time.monotonic() + 30
    while any((sums := await held(url)).values()) or not sums:
        assert time.monotonic() < end, f"still held: {sums}"
        await asyncio.sleep(0.05)


async def test_mixed_load_with_disconnects_and_killed_workers(deployment: LocalDeployment, offline: Engine) -> None:
    loads = [Load(number) for number in range(REQUESTS)]
    async with AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120) as client:
        tasks = [asyncio.create_task(load.run(client)) for load in loads]
        await until(lambda: sum(bool(load.tokens) for load in loads) >= 10)
        await deployment.kill("prefill", 0, signal.SIGKILL)
        await until(lambda: sum(bool(load.tokens) for load in loads) >= 20)
        await deployment.kill("decode", 1, signal.SIGKILL)
        await asyncio.wait_for(asyncio.gather(*tasks), 120)
    assert sum(load.refused for load in loads) == 0
    for load in loads:
        load.check(offline)
    await nothing_held(deployment.url)


async def test_choices_logprobs_and_a_hit(started: LocalDeployment, offline: Engine) -> None:
    ids = [7 + i % 300 for i in range(600)]
    async with AsyncOpenAI(base_url=f"{started.url}/v1", api_key="none", max_retries=0) as client:
        for cached in (0, 512):
            answer = await client.completions.create(
                model="tiny",
                prompt=ids,
                n=3,
                max_tokens=9,
                seed=5,
                temperature=1.0,
                logprobs=2,
                extra_body={"return_token_ids": True},
            )
            expected = reference(offline, ids, 9, Sampling(temperature=1.0, seed=5), n=3)
            got = [choice.token_ids for choice in answer.choices]  # type: ignore[attr-defined]
            assert got == expected
            assert all(len(c.logprobs.token_logprobs) == len(e) for c, e in zip(answer.choices, expected, strict=True))  # type: ignore[union-attr,arg-type]
            assert answer.usage is not None
            assert answer.usage.prompt_tokens_details is not None
            assert answer.usage.prompt_tokens_details.cached_tokens == cached
        chat = await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "the cat"}], max_tokens=5, temperature=0
        )
        assert chat.choices[0].finish_reason in ("length", "stop")
    await nothing_held(started.url)
