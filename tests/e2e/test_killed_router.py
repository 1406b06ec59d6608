"""When a router is killed, its own streams end and nothing else: their memory is free within two seconds."""

import asyncio
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc.aio
import openai

from tests.e2e.deployment import local, model_folder
from tests.worker.cluster import Stream, start, until
from v4_cli.local import LocalDeployment
from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as pb_grpc

FREE_SECONDS = 2.0


async def loads(deployment: LocalDeployment) -> dict[str, pb.Load]:
    """Return the load that each worker reports."""
    found = {}
    for name in ("prefill-0", "decode-0"):
        async with grpc.aio.insecure_channel(deployment.addresses[name]) as channel:
            info: pb.WorkerInfo = await pb_grpc.WorkerStub(channel).Describe(pb.DescribeRequest())
            found[name] = info.load
    return found


async def ask(client: openai.AsyncOpenAI, number: int) -> None:
    """Send a request that would run for minutes. Its connection breaks when the router is killed."""
    body: dict[str, Any] = {"prompt": [number + 2] * 300, "max_tokens": 5000, "temperature": 0}
    without_end = {"ignore_eos": True}  # the tiny model may draw its end after a few hundred tokens
    with suppress(openai.APIError):
        await client.completions.create(model="tiny", extra_body=without_end, **body)


async def until_loads(deployment: LocalDeployment, condition: Any, seconds: float) -> float:
    """Poll until the loads meet a condition. Returns the seconds that this took."""
    began = time.monotonic()
    while not condition(now := await loads(deployment)):
        assert time.monotonic() - began < seconds, f"still: {now}"
    return time.monotonic() - began


async def test_what_a_killed_router_held_is_free_within_two_seconds(tmp_path: Path) -> None:
    model = model_folder(tmp_path)
    async with (
        local(model, 1, 1, max_sequences=2) as deployment,
        openai.AsyncOpenAI(base_url=f"{deployment.url}/v1", api_key="none", max_retries=0, timeout=120) as client,
    ):
        tasks = [asyncio.create_task(ask(client, number)) for number in range(5)]

        def full(now: dict[str, pb.Load]) -> bool:  # decode has streams, prefill has parked caches and a queue
            prefill, decode = now["prefill-0"], now["decode-0"]
            return decode.tails_used == 2 and prefill.leases == 2 and prefill.waiting > 0

        await until_loads(deployment, full, 60)
        other = Stream(deployment.addresses["decode-0"])
        await until(lambda: other.messages)
        await deployment.kill("router", 0, signal.SIGKILL)

        def free(now: dict[str, pb.Load]) -> bool:
            return not any(x.running or x.waiting or x.leases or x.tails_used or x.blocks_used for x in now.values())

        await until_loads(deployment, free, FREE_SECONDS)
        await asyncio.gather(*tasks)
        other.send(start([5] * 40, pb.WHOLE, max_tokens=12))
        await until(lambda: len(other.tokens()) == 12)
        await other.leave()
