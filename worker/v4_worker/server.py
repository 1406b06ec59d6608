"""A worker's gRPC server: streams of routers, cache transfers, health. Does not decide when to stop."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import grpc
import grpc.aio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1._async import HealthServicer

from v4_core.errors import ConfigError
from v4_core.held_ports import is_held
from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as pb_grpc
from v4_kvtransfer.provider import TransferService
from v4_worker.auth import TokenCheck
from v4_worker.channels import KEEPALIVE
from v4_worker.stream import RouterStream
from v4_worker.worker import Worker

_SERVER_OPTIONS = (
    *KEEPALIVE,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.max_receive_message_length", 64 << 20),  # the ids of a 1M-token prompt take 4 MiB, gRPC's default limit
)
_SWEEP_SECONDS = 0.5
_ANY = ("0.0.0.0", "::", "[::]")  # wildcard addresses, to which others cannot connect


class WorkerService(pb_grpc.WorkerServicer):
    """The service Worker of the protocol, for one Worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    async def Describe(self, request: pb.DescribeRequest, context: object) -> pb.WorkerInfo:
        """Return the worker's properties, which a router reads before it starts a leg."""
        return self._worker.info()

    async def Serve(
        self, request_iterator: AsyncIterator[pb.ToWorker], context: object
    ) -> AsyncIterator[pb.FromWorker]:
        """Serve one router's stream until either side ends it."""
        worker, stream = self._worker, RouterStream()
        worker.streams.add(stream)
        stream.flush(worker.info().load)
        reader = asyncio.create_task(self._read(request_iterator, stream))
        try:
            while (message := await stream.next()) is not None:
                yield message
        finally:
            worker.drop_stream(stream)
            reader.cancel()
            await asyncio.gather(reader, return_exceptions=True)  # a router may end its stream in any way

    async def _read(self, messages: AsyncIterator[pb.ToWorker], stream: RouterStream) -> None:
        try:
            async for message in messages:
                if message.HasField("start"):
                    self._worker.start(message.start, stream)
                elif message.HasField("cancel"):
                    self._worker.cancel(message.cancel.request, message.cancel.attempt, stream)
        finally:
            stream.close()


class WorkerServer:
    """The running server of one worker. Its health is SERVING until `not_serving` is called."""

    def __init__(self, worker: Worker, shares_port: bool = False) -> None:
        self._worker = worker
        self._health = HealthServicer()
        token = worker.context.token
        checks = [] if token is None else [TokenCheck(token)]
        sharing = ("grpc.so_reuseport", int(shares_port))  # without it, a port in use is an error
        self._server = grpc.aio.server(options=(*_SERVER_OPTIONS, sharing), interceptors=checks)
        self._sweep: asyncio.Task[None] | None = None
        self.address = ""

    @classmethod
    async def start(cls, worker: Worker, host: str, port: int) -> "WorkerServer":
        """Listen and serve; port 0 takes a free port. Raises ConfigError if the address cannot be bound."""
        context = worker.context
        self = cls(worker, shares_port=is_held(port))
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        pb_grpc.add_WorkerServicer_to_server(WorkerService(worker), self._server)
        sent = worker.metrics.leased_bytes_sent.inc
        TransferService(context.memory, context.leases, context.fingerprint, on_sent=sent).add_to(self._server)
        port = _bind(self._server, host, port)
        self.address = f"{host}:{port}"
        context.address = self.address if host not in _ANY else f"{socket.gethostname()}:{port}"
        await self._server.start()
        await self._health.set("", health_pb2.HealthCheckResponse.SERVING)
        self._sweep = asyncio.create_task(worker.leases.sweep(_SWEEP_SECONDS))
        return self

    async def not_serving(self) -> None:
        """Set the health to NOT_SERVING."""
        await self._health.set("", health_pb2.HealthCheckResponse.NOT_SERVING)

    async def stop(self, grace: float | None) -> None:
        """End all streams after their pending messages, or after `grace` seconds; then stop the engine."""
        if self._sweep is not None:
            self._sweep.cancel()
        for stream in self._worker.streams:
            stream.close()
        await self._server.stop(grace)
        await self._worker.close()


def _bind(server: grpc.aio.Server, host: str, port: int) -> int:
    with suppress(RuntimeError):
        if bound := server.add_insecure_port(f"{host}:{port}"):
            return bound
    raise ConfigError(f"cannot listen on {host}:{port}: the port is in use or the address is not local; choose another")
