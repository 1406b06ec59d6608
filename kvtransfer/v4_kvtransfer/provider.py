"""The sending side of a transfer: serves Pull and Confirm over gRPC from host memory. Does not decide about leases."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import grpc
import grpc.aio

from v4_core.fingerprint import difference
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer import wire
from v4_kvtransfer.errors import FingerprintMismatch, PullMismatch, Stalled, TransferError
from v4_kvtransfer.frames import HEADER_BYTES, MAX_PAYLOAD, Kind, encode
from v4_kvtransfer.layout import TAIL, StreamLayout
from v4_kvtransfer.leases import Lease, LeaseTable, Pull
from v4_kvtransfer.memory import HostMemory

WRITE_SECONDS = 30.0  # a pull ends if its puller does not read a frame for so long

_Context = grpc.aio.ServicerContext[pb.PullRequest, bytes]


class TransferService:
    """Serves the leases of one table from one pool's memory. Must run on the event loop that changes the table."""

    def __init__(
        self,
        memory: HostMemory,
        leases: LeaseTable,
        fingerprint: str,
        keepalive_seconds: float = 2.0,
        on_sent: Callable[[int], object] = lambda count: None,
    ) -> None:
        """`keepalive_seconds` must be well below the pullers' idle timeout. `on_sent(n)` is called for n sent bytes."""
        self._memory = memory
        self._leases = leases
        self._fingerprint = fingerprint
        self._keepalive = keepalive_seconds
        self._on_sent = on_sent

    def add_to(self, server: grpc.aio.Server) -> None:
        """Register both methods. Pull sends raw frames, because protobuf would copy the payload again on each side."""
        methods = {
            "Pull": grpc.unary_stream_rpc_method_handler(
                self._pull, request_deserializer=pb.PullRequest.FromString, response_serializer=None
            ),
            "Confirm": grpc.unary_unary_rpc_method_handler(
                self._confirm,
                request_deserializer=pb.ConfirmRequest.FromString,
                response_serializer=pb.ConfirmReply.SerializeToString,
            ),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, methods),))

    async def _confirm(self, request: pb.ConfirmRequest, context: object) -> pb.ConfirmReply:
        return pb.ConfirmReply(held=self._leases.confirm(request.lease, request.request, request.attempt))

    async def _pull(self, request: pb.PullRequest, context: _Context) -> None:
        try:
            if request.fingerprint != self._fingerprint:
                raise FingerprintMismatch(
                    "the puller cannot continue this worker's state: they differ in "
                    f"{difference(self._fingerprint, request.fingerprint)}; pair workers of one revision"
                )
            changed = asyncio.Event()
            with self._leases.attached(request.lease, request.request, request.attempt, changed.set) as pull:
                await self._stream(request, pull, changed, _Sender(context.write))
        except TransferError as error:
            await context.abort(wire.CODES[type(error)], str(error))

    async def _stream(self, request: pb.PullRequest, pull: Pull, changed: asyncio.Event, sender: "_Sender") -> None:
        lease = pull.lease
        if request.tokens != lease.tokens:
            raise PullMismatch(
                f"request {lease.request} has {lease.tokens} tokens, the puller expects {request.tokens}"
            )
        layout = StreamLayout(self._memory.geometry, request.tokens, request.have_blocks)
        await sender.send(Kind.HELLO, [_hello(request, layout).SerializeToString()])
        while True:
            changed.clear()
            pull.check()  # nothing is awaited from here to the end of encode(), so the memory stays held
            ready = layout.total if lease.finished else layout.ready(lease.complete_blocks)
            end = min(ready, sender.offset + MAX_PAYLOAD)
            if end > sender.offset:
                start = sender.offset
                await sender.send(Kind.DATA, _views(self._memory, lease, layout, start, end))
                self._on_sent(end - start)
            elif lease.finished:
                await sender.send(Kind.FINAL, [pb.Final(tokens=lease.tokens, firsts=lease.firsts).SerializeToString()])
                return
            else:  # an empty frame starts the receiver's waiting time; repeating it prevents the receiver's timeout
                await sender.send(Kind.DATA, [])
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._keepalive):
                        await changed.wait()


class _Sender:
    """Numbers the frames of one pull and writes each within a time limit.

    Frames are written one at a time. Assembling the next frame during a write was measured: it took more CPU time and
    was not faster.
    """

    def __init__(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        self._write = write
        self._sequence = 0
        self.offset = 0  # stream bytes sent

    async def send(self, kind: Kind, parts: Sequence[bytes | memoryview]) -> None:
        frame = encode(kind, self._sequence, self.offset, parts)
        self._sequence += 1
        if kind == Kind.DATA:
            self.offset += len(frame) - HEADER_BYTES
        try:
            async with asyncio.timeout(WRITE_SECONDS):
                await self._write(frame)
        except TimeoutError:
            raise Stalled(f"the puller read nothing for {WRITE_SECONDS:g} s") from None


def _hello(request: pb.PullRequest, layout: StreamLayout) -> pb.Hello:
    return pb.Hello(
        request=request.request,
        attempt=request.attempt,
        fingerprint=request.fingerprint,
        tokens=request.tokens,
        have_blocks=request.have_blocks,
        total_bytes=layout.total,
    )


def _views(memory: HostMemory, lease: Lease, layout: StreamLayout, start: int, end: int) -> list[memoryview]:
    """Views of the memory that holds the stream bytes start .. end-1."""
    return [
        memory.tails[lease.tail, offset : offset + length].data
        if block == TAIL
        else memory.slabs[lease.slots[block], offset : offset + length].data
        for block, offset, length in layout.pieces(start, end)
    ]
