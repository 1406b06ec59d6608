"""More requests than memory holds at once: all are served with the right tokens, and all memory is freed."""

import asyncio
from pathlib import Path

from openai import AsyncOpenAI

from tests.e2e.deployment import local, model_folder, reference_engine
from tests.e2e.test_local import Load, nothing_held


async def test_many_requests_on_one_small_pair(tmp_path: Path) -> None:
    model = model_folder(tmp_path)
    offline = reference_engine(model)
    loads = [Load(1000 + number) for number in range(40)]
    async with (
        local(model, 1, 1, max_sequences=3, memory="4MB", max_model_len=1500) as deployment,
        AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        await asyncio.wait_for(asyncio.gather(*(load.run(client) for load in loads)), 120)
        await nothing_held(deployment.url)
    assert not any(load.refused for load in loads)
    for load in loads:
        load.check(offline)
