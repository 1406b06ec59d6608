"""Prefill and decode workers in one process over real loopback gRPC, and a router reduced to one stream each."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import grpc
import grpc.aio

from tests.engine.harness import make_engine
from v4_core.blocks import pack_ids, unpack_ids
from v4_core.sampling import Sampling
from v4_core.settings import load
from v4_core.token import TokenFile, metadata
from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as pb_grpc
from v4_decode.leg import DecodeLeg
from v4_engine.engine import Engine
from v4_engine.generate import output_ids
from v4_engine.loading import Loaded
from v4_engine.sequence import Request
from v4_prefill.leg import PrefillLeg
from v4_worker.config import WorkerConfig
from v4_worker.leg import WholeLeg
from v4_worker.metrics import WorkerMetrics
from v4_worker.server import WorkerServer
from v4_worker.worker import LegKinds, Worker

KINDS: dict[str, LegKinds] = {
    "prefill": {pb.PREFILL: PrefillLeg, pb.WHOLE: WholeLeg},
    "decode": {pb.DECODE: DecodeLeg, pb.WHOLE: WholeLeg},
}
GREEDY = Sampling(temperature=0.0)
DEADLINE = 30.0


async def until(condition: Callable[[], object], seconds: float = DEADLINE) -> None:
    """Wait for a condition; AssertionError at the deadline."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true"
        await asyncio.sleep(0.005)


class Stream:
    """One router's stream to a worker at an address."""

    def __init__(self, address: str, token: TokenFile | None = None) -> None:
        self.address, self._token = address, token
        self.load = pb.Load()
        self.messages = 0
        self.events: dict[tuple[str, int], list[pb.Event]] = defaultdict(list)
        self._out: asyncio.Queue[pb.ToWorker | None] = asyncio.Queue()
        self._channel = grpc.aio.insecure_channel(self.address)
        self.stub = pb_grpc.WorkerStub(self._channel)
        self._reader = asyncio.create_task(self._read())

    async def leave(self) -> None:
        """End this stream."""
        self._out.put_nowait(None)
        self._reader.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close(None)

    async def _read(self) -> None:
        async def requests() -> AsyncIterator[pb.ToWorker]:
            while (message := await self._out.get()) is not None:
                yield message

        async for message in self.stub.Serve(requests(), metadata=metadata(self._token)):
            self.load.CopyFrom(message.load)
            self.messages += 1
            for event in message.events:
                self.events[event.request, event.attempt].append(event)

    def send(self, start: pb.Start) -> None:
        """Start a leg."""
        self._out.put_nowait(pb.ToWorker(start=start))

    def cancel(self, request: str, attempt: int = 0) -> None:
        """Cancel a leg."""
        self._out.put_nowait(pb.ToWorker(cancel=pb.Cancel(request=request, attempt=attempt)))

    async def event(self, kind: str, request: str = "r", attempt: int = 0) -> pb.Event:
        """The first event of a kind, once it is there. A failure that was not asked for is an error."""
        found: list[pb.Event] = []

        def look() -> bool:
            events = self.events[request, attempt]
            found[:] = [e for e in events if e.WhichOneof("event") == kind]
            failures = [e.failed.message for e in events if e.HasField("failed")]
            assert kind == "failed" or not failures, failures
            return bool(found)

        await until(look)
        return found[0]

    def tokens(self, choice: int = 0, request: str = "r", attempt: int = 0) -> dict[int, int]:
        """Output index -> token."""
        out: dict[int, int] = {}
        for event in self.events[request, attempt]:
            if event.HasField("tokens") and event.tokens.choice == choice:
                out |= dict(zip(itertools.count(event.tokens.start), unpack_ids(event.tokens.ids), strict=False))
        return out


class Node(Stream):
    """One worker and this test's stream to it."""

    def __init__(self, worker: Worker, server: WorkerServer) -> None:
        super().__init__(server.address, worker.context.token)
        self.worker, self.server = worker, server

    @classmethod
    async def start(
        cls,
        role: str,
        engine: Engine | None = None,
        fingerprint: str = "same",
        token: TokenFile | None = None,
        **settings: float,
    ) -> "Node":
        """A worker over the tiny model in fp64."""
        config = load(WorkerConfig, None, {"model": Path("unused"), **settings})
        loaded = Loaded(engine or make_engine(), fingerprint)

        def fatal(error: BaseException) -> None:
            raise AssertionError("the engine failed") from error

        worker = Worker(config, role, loaded, KINDS[role], WorkerMetrics(), fatal, token)
        return cls(worker, await WorkerServer.start(worker, "127.0.0.1", 0))

    @classmethod
    async def join(cls, node: "Node") -> "Node":
        """Another router's stream to the same worker."""
        return cls(node.worker, node.server)

    async def empty(self) -> None:
        """Nothing is held: no leg, lease, tail or block in use."""
        await until(lambda: self.worker.idle and not self.load.tails_used and not self.load.blocks_used)
        await self.worker.engine.call(lambda engine: engine.scheduler.check_integrity())
        assert not self.worker.leases.held

    async def stop(self, grace: float | None = None) -> None:
        """Stop the worker."""
        self._out.put_nowait(None)
        await self.server.stop(grace)
        await self.leave()


def start(
    ids: list[int],
    phase: pb.Phase,
    name: str = "r",
    attempt: int = 0,
    max_tokens: int = 12,
    n: int = 1,
    output: list[int] | None = None,
    source: pb.Source | None = None,
    deadline_ms: int = 0,
    sampling: Sampling = GREEDY,
) -> pb.Start:
    """A Start message without stop tokens."""
    return pb.Start(
        request=name,
        attempt=attempt,
        phase=phase,
        prompt_ids=pack_ids(ids),
        output_ids=pack_ids(output or []),
        n=n,
        max_tokens=max_tokens,
        ignore_eos=True,
        sampling=sampling.to_proto(),
        source=source,
        deadline_ms=deadline_ms,
    )


def offline(ids: list[int], max_tokens: int = 12, sampling: Sampling = GREEDY, n: int = 1) -> list[list[int]]:
    """What one engine alone answers."""
    request = Request(("offline", 0), "whole", ids, n=n, max_tokens=max_tokens, sampling=sampling)
    return [list(output) for output in output_ids(make_engine(), request)]
