"""How fast a cache moves between two processes over loopback: `python -m bench.transfer [--json]`.

Three ways are compared in one run, from and to the same memory: the real provider and puller; raw TCP (sendall,
recv_into), which is the yardstick; and gRPC with the payload in a protobuf bytes field, which the raw frames avoid. All
use the heap setting of v4_kvtransfer.heap. CPU time is that of the whole process with all its threads.
"""

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection

import grpc
import grpc.aio
import numpy as np
from rich.console import Console
from rich.table import Table

from v4_core.blocks import BLOCK_TOKENS
from v4_core.geometry import CacheGeometry, ideal_bytes
from v4_core.profiles import model_config
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer.frames import HEADER_BYTES, MAX_PAYLOAD
from v4_kvtransfer.heap import keep_large_buffers
from v4_kvtransfer.leases import LeaseTable
from v4_kvtransfer.memory import HostMemory
from v4_kvtransfer.provider import TransferService
from v4_kvtransfer.puller import pull

GEOMETRY = CacheGeometry(model_config("flash"), "bf16", "bf16")
PROTOBUF = "/bench.Reference/Protobuf"
FINGERPRINT = "bench"


@dataclass(frozen=True)
class Row:
    """One way of moving the same bytes. The rate is a median, CPU time a mean over all repeats."""

    way: str
    gb_per_second: float
    of_raw_tcp: float
    sender_cpu_seconds_per_gb: float
    receiver_cpu_seconds_per_gb: float


@dataclass(frozen=True)
class Result:
    """The results of one run."""

    blocks: int
    bytes_sent: int  # packed rows and tail
    bytes_framed: int  # with frame headers
    bytes_ideal: int  # entries and windows of the model, without compressor state
    rows: list[Row]


def _memory(blocks: int) -> HostMemory:
    slabs = np.ones((blocks, GEOMETRY.slab_bytes), np.uint8)  # writing ones allocates every page before the first round
    tails = np.ones((1, GEOMETRY.tail_bytes), np.uint8)
    return HostMemory(GEOMETRY, slabs, tails)


def _serve(pipe: Connection, blocks: int) -> None:
    keep_large_buffers()
    asyncio.run(_serve_all(pipe, blocks))


async def _serve_all(pipe: Connection, blocks: int) -> None:
    memory = _memory(blocks)
    leases = LeaseTable(3600, lambda lease, reason: None)
    lease = leases.grant("bench", 0, blocks * BLOCK_TOKENS)
    leases.finish(lease.id, range(blocks), 0, [pb.First(id=1)])
    server = grpc.aio.server()
    TransferService(memory, leases, FINGERPRINT).add_to(server)
    server.add_generic_rpc_handlers((_protobuf_handler(memory),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=_serve_tcp, args=(listener, memory), daemon=True).start()
    pipe.send((port, listener.getsockname()[1], lease.id))
    await server.wait_for_termination()


def _chunks(memory: HostMemory) -> list[memoryview]:
    flat = memory.slabs.reshape(-1)
    return [flat[i : i + MAX_PAYLOAD].data for i in range(0, flat.size, MAX_PAYLOAD)]


def _protobuf_handler(memory: HostMemory) -> "grpc.GenericRpcHandler[pb.PullRequest, pb.Tokens]":
    async def stream(request: pb.PullRequest, context: object) -> AsyncIterator[pb.Tokens]:
        for chunk in _chunks(memory):
            yield pb.Tokens(ids=chunk.tobytes())

    method = grpc.unary_stream_rpc_method_handler(
        stream, request_deserializer=pb.PullRequest.FromString, response_serializer=pb.Tokens.SerializeToString
    )
    return grpc.method_handlers_generic_handler("bench.Reference", {"Protobuf": method})


def _serve_tcp(listener: socket.socket, memory: HostMemory) -> None:
    connection, _ = listener.accept()
    while connection.recv(1):
        for chunk in _chunks(memory):
            connection.sendall(chunk)


Way = Callable[[int], Awaitable[int]]  # attempt -> bytes


def _frames(channel: grpc.aio.Channel, memory: HostMemory, lease: int) -> Way:
    blocks = len(memory.slabs)

    async def move(attempt: int) -> int:
        request = pb.PullRequest(
            request="bench", attempt=attempt, lease=lease, fingerprint=FINGERPRINT, tokens=blocks * BLOCK_TOKENS
        )
        return (await pull(channel, request, memory, range(blocks), 0, lambda block: None, 30.0)).bytes

    return move


def _protobuf(channel: grpc.aio.Channel, memory: HostMemory) -> Way:
    method = channel.unary_stream(
        PROTOBUF, request_serializer=pb.PullRequest.SerializeToString, response_deserializer=pb.Tokens.FromString
    )

    async def move(attempt: int) -> int:
        flat, position = memory.slabs.reshape(-1), 0
        async for message in method(pb.PullRequest()):
            chunk = np.frombuffer(message.ids, np.uint8)
            flat[position : position + chunk.size] = chunk
            position += chunk.size
        return position

    return move


def _raw_tcp(connection: socket.socket, memory: HostMemory) -> Way:
    async def move(attempt: int) -> int:
        connection.sendall(b"?")
        flat, position = memory.slabs.reshape(-1).data, 0
        while position < len(flat):
            position += connection.recv_into(flat[position : position + MAX_PAYLOAD])
        return position

    return move


def _cpu(pid: int) -> float:
    """Return the CPU seconds of a process with all its threads, by the clock id that clock_getcpuclockid returns."""
    return time.clock_gettime((~pid << 3) | 2)


async def _measure(ways: dict[str, Way], pids: tuple[int, int], repeats: int) -> list[Row]:
    """Measure the ways alternately, `repeats` times after one warm-up round, so that other load affects all alike."""
    rates: dict[str, list[float]] = {way: [] for way in ways}
    cpu = {way: np.zeros(2) for way in ways}
    moved = dict.fromkeys(ways, 0)
    for attempt in range(repeats + 1):
        for way, move in ways.items():
            before, began = np.array([_cpu(pid) for pid in pids]), time.perf_counter()
            nbytes = await move(attempt)
            if attempt:
                rates[way].append(nbytes / 1e9 / (time.perf_counter() - began))
                cpu[way] += np.array([_cpu(pid) for pid in pids]) - before
                moved[way] += nbytes
    median = {way: statistics.median(values) for way, values in rates.items()}
    yardstick = median["raw TCP"]
    return [Row(way, median[way], median[way] / yardstick, *(cpu[way] / moved[way] * 1e9)) for way in ways]


async def _run(port: int, tcp_port: int, lease: int, pids: tuple[int, int], blocks: int, repeats: int) -> Result:
    memory = _memory(blocks)
    with socket.create_connection(("127.0.0.1", tcp_port)) as connection:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            ways = {
                "frames over gRPC": _frames(channel, memory, lease),
                "raw TCP": _raw_tcp(connection, memory),
                "protobuf over gRPC": _protobuf(channel, memory),
            }
            rows = await _measure(ways, pids, repeats)
    tokens = blocks * BLOCK_TOKENS
    sent = GEOMETRY.sequence_bytes(tokens)
    framed = sent + (-(-sent // MAX_PAYLOAD)) * HEADER_BYTES
    ideal = sum(ideal_bytes(GEOMETRY.config, GEOMETRY.storage, GEOMETRY.index, tokens).values())
    return Result(blocks, sent, framed, ideal, rows)


def run(blocks: int, repeats: int) -> Result:
    """Measure with the sender in another process and the receiver in this one."""
    keep_large_buffers()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, blocks))
    process.start()
    theirs.close()  # so that recv() below ends if the sender dies
    try:
        port, tcp_port, lease = ours.recv()
        pids = (process.pid or 0, multiprocessing.current_process().pid or 0)
        return asyncio.run(_run(port, tcp_port, lease, pids, blocks, repeats))
    finally:
        process.terminate()
        process.join()


def show(result: Result, console: Console) -> None:
    """Print the results as a table."""
    gb = result.bytes_sent / 1e9
    table = Table(title=f"KV transfer over loopback: {result.blocks} blocks and a tail of Flash bf16, {gb:.3f} GB")
    for heading in ("way", "GB/s", "of raw TCP", "sender CPU s/GB", "receiver CPU s/GB"):
        table.add_column(heading, justify="left" if heading == "way" else "right")
    for row in result.rows:
        cpu = (f"{row.sender_cpu_seconds_per_gb:.2f}", f"{row.receiver_cpu_seconds_per_gb:.2f}")
        table.add_row(row.way, f"{row.gb_per_second:.2f}", f"{row.of_raw_tcp:.0%}", *cpu)
    console.print(table)
    extra = (result.bytes_framed / result.bytes_ideal - 1) * 100
    console.print(
        f"bytes framed {result.bytes_framed:,}, rows and tail {result.bytes_sent:,}, ideal {result.bytes_ideal:,}"
    )
    console.print(f"over ideal: {extra:.2f} %")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.transfer", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--blocks", type=int, default=256, help="blocks of 256 tokens (default 256)")
    parser.add_argument("--repeats", type=int, default=7, help="measured repeats, at least 5 (default 7)")
    options = parser.parse_args()
    result = run(options.blocks, max(5, options.repeats))
    console = Console()
    if options.json:
        console.print_json(json.dumps(asdict(result)))
    else:
        show(result, console)


if __name__ == "__main__":
    main()
