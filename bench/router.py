"""What the router costs: `python -m bench.router [--json]`.

A router process runs between a client and workers without a model, over loopback. Requests per core are requests
divided by the CPU seconds of the router process. Added latency is the time to the first token through the router, minus
the time when the client asks a worker directly, measured alternately in the same run.
"""

import argparse
import asyncio
import json
import multiprocessing
import random
import socket
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import grpc.aio
import httpx
from rich.console import Console
from rich.table import Table
from tests.router.fake_worker import Caches, FakeWorker
from tests.router.tokenizers import write_model

from v4_core.blocks import pack_ids
from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as rpc
from v4_router.config import RouterConfig
from v4_router.server import run

# The target of each load, in requests per core and second.
TARGETS = {
    "1,000 ids, 1 token": 1000.0,
    "1,000 ids, 32 tokens": None,
    "100,000 ids, 1 token": 250.0,
    "100,000-token chat, 90 % seen before": 25.0,
}
WORDS = "the cat sat on the mat and a dog ran to see what the cat had found there . "


@dataclass(frozen=True)
class Load:
    """One kind of request and its cost."""

    name: str
    requests: int
    requests_per_core_second: float
    target: float | None


def workers(pipe: Connection) -> None:
    """Run a pair of workers in one process. Sends their addresses, and ends with the pipe."""

    async def main() -> None:
        caches = Caches()
        pair = [await FakeWorker(role, caches).start() for role in ("prefill", "decode")]
        pipe.send([worker.address for worker in pair])
        await asyncio.to_thread(pipe.poll, None)
        for worker in pair:
            await worker.kill()

    asyncio.run(main())


def cpu_seconds(pid: int) -> float:
    """Return user plus system time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


async def load(
    client: httpx.AsyncClient, pid: int, name: str, bodies: list[tuple[str, bytes]], target: float | None
) -> Load:
    """Send all requests, four at a time."""
    before = cpu_seconds(pid)
    queue = list(bodies)

    async def one() -> None:
        while queue:
            path, body = queue.pop()
            (await client.post(path, content=body)).raise_for_status()

    await asyncio.gather(*(one() for _ in range(4)))
    return Load(name, len(bodies), len(bodies) / (cpu_seconds(pid) - before), target)


async def added_latency(client: httpx.AsyncClient, addresses: list[str], count: int) -> float:
    """Return the median seconds to the first token of 1,000 ids, minus the median of a prefill leg sent directly."""
    ids = [random.randrange(7, 400) for _ in range(1000)]
    body = json.dumps({"prompt": ids, "max_tokens": 2, "stream": True}).encode()
    through, direct = [], []
    async with grpc.aio.insecure_channel(addresses[0]) as channel:
        call = rpc.WorkerStub(channel).Serve()
        for number in range(count):
            before = time.perf_counter()
            async with client.stream("POST", "/v1/completions", content=body) as response:
                chunks = response.aiter_raw()
                await anext(chunks)
                through.append(time.perf_counter() - before)
                async for _ in chunks:
                    pass
            before = time.perf_counter()
            start = pb.Start(request=f"direct-{number}", phase=pb.PREFILL, prompt_ids=pack_ids(ids), n=1, max_tokens=1)
            await call.write(pb.ToWorker(start=start))
            while not any(event.HasField("tokens") for event in (await call.read()).events):
                pass
            direct.append(time.perf_counter() - before)
        call.cancel()
    return statistics.median(through) - statistics.median(direct)


def chats(count: int, tokens: int) -> list[tuple[str, bytes]]:
    """Return chats of about `tokens` tokens, of which all chats share nine tenths."""
    text = WORDS * (tokens // 20 // 5)
    history = [{"role": role, "content": text * 3} for role in ("system", "user", "assistant")]
    bodies = []
    for number in range(count):
        fresh = {"role": "user", "content": f"{number} {text}"}
        body = {"messages": [*history, fresh], "max_tokens": 1}
        bodies.append(("/v1/chat/completions", json.dumps(body).encode()))
    return bodies


def completions(count: int, tokens: int, output: int) -> list[tuple[str, bytes]]:
    """Return streaming completions of prompts of random ids, so that no two share a prefix."""
    bodies = []
    for _ in range(count):
        ids = random.choices(range(7, 400), k=tokens)
        body = {"prompt": ids, "max_tokens": output, "stream": True}
        bodies.append(("/v1/completions", json.dumps(body).encode()))
    return bodies


async def measure(url: str, pid: int, addresses: list[str]) -> tuple[list[Load], float]:
    """Measure all kinds of load, and the latency in seconds that the router adds."""
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        deadline = time.monotonic() + 60
        while not await _ready(client):
            if time.monotonic() > deadline:
                raise SystemExit("the router did not become ready")
            await asyncio.sleep(0.05)
        kinds = [
            completions(400, 1000, 1),
            completions(200, 1000, 32),
            completions(60, 100_000, 1),
            chats(40, 100_000),
        ]
        await load(client, pid, "warm-up", [*completions(20, 10, 2), *chats(1, 100_000)], None)
        named = zip(TARGETS.items(), kinds, strict=True)
        loads = [await load(client, pid, name, bodies, target) for (name, target), bodies in named]
        return loads, await added_latency(client, addresses, 200)


async def _ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/ready")).status_code == 200
    except httpx.TransportError:
        return False


def main() -> None:
    """Start the processes, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    spawn = multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
        free.close()
        pair = spawn.Process(target=workers, args=(other,), daemon=True)
        pair.start()
        addresses: list[str] = pipe.recv()
        config = RouterConfig(write_model(Path(folder)), "bench", (addresses[0],), (addresses[1],), port=port)
        router = spawn.Process(target=run, args=(config,), daemon=True)
        router.start()
        assert router.pid is not None
        loads, added = asyncio.run(measure(f"http://127.0.0.1:{port}", router.pid, addresses))
        router.terminate()
        router.join()
        pipe.send(None)
        pair.join()
    if as_json:
        print(json.dumps({"loads": [asdict(one) for one in loads], "added_p50_seconds": added}))
        return
    table = Table("requests", "count", "per core and second", "target", title="Router")
    for one in loads:
        target = "" if one.target is None else f">= {one.target:g}"
        table.add_row(one.name, str(one.requests), f"{one.requests_per_core_second:.0f}", target)
    console = Console()
    console.print(table)
    console.print(f"added to the time to the first token, median: {added * 1e3:.2f} ms (target: < 2 ms)")


if __name__ == "__main__":
    main()
