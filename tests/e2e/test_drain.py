"""A worker that is told to stop finishes what runs, and nothing new goes there."""

import asyncio
import signal
from pathlib import Path
from typing import Any

from openai import AsyncOpenAI

from tests.e2e.deployment import local, model_folder, reference, reference_engine
from v4_core.sampling import Sampling


async def test_a_terminated_decode_worker_finishes_its_stream(tmp_path: Path) -> None:
    model = model_folder(tmp_path)
    ids = list(range(10, 60))
    expected = reference(reference_engine(model), ids, 250, Sampling(temperature=0.0))[0]
    asked: dict[str, Any] = {
        "model": "tiny",
        "prompt": ids,
        "max_tokens": 250,
        "temperature": 0,
        "extra_body": {"return_token_ids": True},
    }
    async with (
        local(model, 1, 2, drain_seconds=60.0) as deployment,
        AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        raw = await client.completions.with_raw_response.create(**asked, stream=True)
        address = dict(part.strip().split("=", 1) for part in raw.headers["x-v4serve-route"].split(";"))["decode"]
        index = [deployment.addresses[f"decode-{i}"] for i in range(2)].index(address)
        tokens: list[int] = []
        stopping: asyncio.Task[None] | None = None
        async for chunk in raw.parse():
            for choice in chunk.choices:
                tokens += choice.token_ids or []
            if stopping is None and len(tokens) > 5:
                stopping = asyncio.create_task(deployment.kill("decode", index, signal.SIGTERM))
        assert tokens == expected
        assert stopping is not None
        await stopping
        answer = await client.completions.create(**asked)
        assert answer.choices[0].token_ids == expected
