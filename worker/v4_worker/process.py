"""A worker process: gRPC server with health, loading, readiness, drain on SIGTERM. `run` blocks until it is over.

Health says SERVING once the weights are loaded and one token was generated, and no longer once a drain began.
"""

import asyncio
import logging
import signal
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress

import grpc
import grpc.aio
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from v4_core.errors import ConfigError
from v4_core.sampling import Sampling
from v4_core.settings import parse_bytes
from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as pb_grpc
from v4_engine.loading import EngineOptions, Loaded, load_engine
from v4_engine.sequence import Request
from v4_kvtransfer.provider import TransferService
from v4_worker.config import WorkerConfig
from v4_worker.stream import RouterStream
from v4_worker.worker import LegKinds, Worker

log = logging.getLogger("v4serve.worker")

_SERVER_OPTIONS = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),  # a 1M-token prompt is 4 MiB of ids, and 4 MiB is gRPC's limit
    ("grpc.so_reuseport", 0),  # a taken port is an error, not a second owner
)
_SWEEP_SECONDS = 0.5
_STOP_SECONDS = 2.0


class WorkerService(pb_grpc.WorkerServicer):
    """Serve and Describe over one Worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Describe(self, request: pb.DescribeRequest, context: object) -> pb.WorkerInfo:
        """What routers must know before they send anything."""
        return self._worker.info()

    async def Serve(
        self, request_iterator: AsyncIterator[pb.ToWorker], context: object
    ) -> AsyncIterator[pb.FromWorker]:
        """One router's stream, until either side ends it."""
        worker, stream = self._worker, RouterStream()
        worker.streams.add(stream)
        stream.flush(worker.info().load)
        reader = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while not reader.done():
                message = asyncio.create_task(stream.next())
                await asyncio.wait({message, reader}, return_when=asyncio.FIRST_COMPLETED)
                if not message.done():
                    message.cancel()
                    break
                yield message.result()
        finally:
            reader.cancel()
            worker.lost(stream)

    async def _read(self, messages: AsyncIterator[pb.ToWorker], stream: RouterStream) -> None:
        async for message in messages:
            if message.HasField("start"):
                self._worker.start(message.start, stream)
            elif message.HasField("cancel"):
                self._worker.cancel(message.cancel.request, message.cancel.attempt)


def run(config: WorkerConfig, role: str, kinds: LegKinds) -> None:
    """Run one worker until a signal or a fatal error ends it. Raises ConfigError, RuntimeError."""
    asyncio.run(_Process(config, role, kinds).run())


class _Process:
    def __init__(self, config: WorkerConfig, role: str, kinds: LegKinds) -> None:
        self._config, self._role, self._kinds = config, role, kinds
        self._signals = 0
        self._stop = asyncio.Event()
        self._fatal: BaseException | None = None

    async def run(self) -> None:
        config = self._config
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        if config.threads:
            torch.set_num_threads(config.threads)
        loaded = await self._until_stopped(asyncio.to_thread(self._load))
        if loaded is None:
            return
        worker = Worker(config, self._role, loaded, self._kinds, self._failed)
        health = HealthServicer()
        server = grpc.aio.server(options=_SERVER_OPTIONS)
        health_pb2_grpc.add_HealthServicer_to_server(health, server)
        pb_grpc.add_WorkerServicer_to_server(WorkerService(worker), server)
        TransferService(worker.memory, worker.leases, worker.fingerprint).add_to(server)
        port = _bind(server, config)
        await server.start()
        await health.set("", health_pb2.HealthCheckResponse.SERVING)
        log.info("%s worker ready on %s:%d, fingerprint %s", self._role, config.host, port, worker.fingerprint[:16])
        sweep = asyncio.create_task(worker.leases.sweep(_SWEEP_SECONDS))
        await self._stop.wait()
        await health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)
        await self._drain(worker)
        sweep.cancel()
        await server.stop(_STOP_SECONDS)
        await worker.close()
        if self._fatal is not None:
            raise RuntimeError("the engine failed; its state cannot be trusted") from self._fatal

    def _load(self) -> Loaded:
        config, memory = self._config, self._config.memory
        options = EngineOptions(
            device=config.device,
            dtype=config.dtype,
            format=config.format,
            index_format=config.index_format,
            cache_bytes=0 if memory == "auto" else parse_bytes(memory),
            max_sequences=config.max_sequences,
            max_model_len=config.max_model_len,
            chunk_tokens=config.chunk_tokens,
            max_waiting=config.max_waiting,
            checkpoint_every=config.checkpoint_every,
        )
        loaded = load_engine(config.model, options, _Progress(config.model.name))
        _warm_up(loaded)
        return loaded

    async def _until_stopped(self, work: Coroutine[None, None, Loaded]) -> Loaded | None:
        loading, stopped = asyncio.ensure_future(work), asyncio.create_task(self._stop.wait())
        await asyncio.wait({loading, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        return await loading if not self._stop.is_set() else None

    async def _drain(self, worker: Worker) -> None:
        """Refuse what is new and let what runs finish, for as long as was granted or until a second signal."""
        worker.draining = True
        worker.publish()
        deadline = asyncio.get_running_loop().time() + self._config.drain_seconds
        while not worker.idle and self._fatal is None and self._signals < 2:
            if asyncio.get_running_loop().time() >= deadline:
                log.warning("drain ended with %d requests unfinished", len(worker.legs))
                break
            await asyncio.sleep(0.05)

    def _signalled(self) -> None:
        self._signals += 1
        self._stop.set()

    def _failed(self, error: BaseException) -> None:
        log.critical("the engine failed: this worker stops", exc_info=error)
        self._fatal = error
        self._stop.set()


class _Progress:
    """Weights loading, as a line for every tenth."""

    def __init__(self, name: str) -> None:
        self._name, self._shown = name, -1

    def __call__(self, done: int, total: int) -> None:
        tenth = 10 * done // max(total, 1)
        if tenth > self._shown:
            self._shown = tenth
            log.info("loading %s: %d %% of %.1f MB", self._name, 10 * tenth, total / 1e6)


def _bind(server: grpc.aio.Server, config: WorkerConfig) -> int:
    with suppress(RuntimeError):
        if port := server.add_insecure_port(f"{config.host}:{config.port}"):
            return port
    raise ConfigError(f"cannot listen on {config.host}:{config.port}: the port is taken or not ours; choose another")


def _warm_up(loaded: Loaded) -> None:
    """Generate one token: a worker that cannot must not say that it is ready."""
    engine = loaded.engine
    request = Request(
        ("warm-up", 0), "whole", [engine.config.bos_token_id], max_tokens=1, sampling=Sampling(temperature=0)
    )
    engine.submit(request)
    while engine.busy:
        engine.step()
