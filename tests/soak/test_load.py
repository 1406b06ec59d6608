"""Minutes of mixed load with clients that leave: no wrong token, nothing held, no memory that only grows."""

import asyncio
import time
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from tests.e2e.deployment import local, model_folder, reference_engine
from tests.e2e.test_local import Load, nothing_held

MINUTES = 5
CLIENTS = 16
GROWTH = 1.3  # of a worker's resident memory after warming up


def resident(pid: int) -> int:
    """Bytes of a process in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


@pytest.mark.soak
@pytest.mark.timeout(60 * MINUTES + 600)
async def test_minutes_of_load(tmp_path: Path) -> None:
    model = model_folder(tmp_path)
    offline = reference_engine(model)
    done: list[Load] = []
    async with (
        local(model, 2, 2) as deployment,
        AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        end = time.monotonic() + 60 * MINUTES
        numbers = iter(range(10**9))
        warm: dict[str, int] = {}

        async def one_client() -> None:
            while time.monotonic() < end:
                load = Load(next(numbers))
                await load.run(client)
                done.append(load)
                if len(done) == 200:
                    warm.update({name: resident(pid) for name, pid in deployment.pids.items()})

        await asyncio.gather(*(one_client() for _ in range(CLIENTS)))
        await nothing_held(deployment.url)
        grown = {name: resident(pid) / warm[name] for name, pid in deployment.pids.items()}
        assert all(ratio < GROWTH for ratio in grown.values()), grown
    for load in done[:: max(1, len(done) // 300)]:
        load.check(offline)
    print(f"{len(done)} requests, memory grew by {grown}")
