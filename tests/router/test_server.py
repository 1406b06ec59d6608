"""The router as a process."""

import asyncio
import json
import signal
import socket
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.router.conftest import until
from tests.router.fake_worker import Caches, FakeWorker

PROGRAM = """
import sys
from pathlib import Path
from v4_router.config import RouterConfig
from v4_router.server import run
model, port, prefill, decode = sys.argv[1:]
run(RouterConfig(Path(model), "tiny", (prefill,), (decode,), port=int(port)))
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_within_seconds_and_frees_the_workers(model_path: Path, number: signal.Signals) -> None:
    caches = Caches()
    prefill, decode = [await FakeWorker(role, caches).start() for role in ("prefill", "decode")]
    decode.step_seconds = 0.01
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    arguments = [str(model_path), str(port), prefill.address, decode.address]
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", PROGRAM, *arguments)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client:
            await _until_ready(client)
            body = {"prompt": [10], "max_tokens": 100_000, "stream": True}
            async with client.stream("POST", "/v1/completions", json=body) as response:
                lines = response.aiter_lines()
                await anext(lines)
                before = time.monotonic()
                process.send_signal(number)
                assert await asyncio.wait_for(process.wait(), 8) == 0
                assert time.monotonic() - before < 6
                last = [line async for line in lines if line][-1]
                assert json.loads(last.removeprefix("data: "))["error"]["code"] == "no_worker"
        await until(lambda: prefill.idle and decode.idle, "workers idle")
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await prefill.kill()
        await decode.kill()


async def _until_ready(client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            if (await client.get("/ready")).status_code == 200:
                return
        except httpx.TransportError:
            await asyncio.sleep(0.02)
    raise AssertionError("the router did not become ready")
