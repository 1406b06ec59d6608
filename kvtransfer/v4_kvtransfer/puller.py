"""The receiving side of a transfer: pulls a cache over gRPC into host memory and confirms it. Knows no engine."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import grpc
import grpc.aio

from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer import wire
from v4_kvtransfer.errors import BrokenStream, LeaseGone, Stalled
from v4_kvtransfer.memory import HostMemory
from v4_kvtransfer.receiver import Receiver

Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Pulled:
    """A completely received cache. It may be adopted only after confirm()."""

    final: pb.Final
    bytes: int  # of the stream, without headers
    seconds: float  # from the call to the last frame
    wait_seconds: float  # the part of `seconds` in which the sender had nothing to send


async def pull(
    channel: grpc.aio.Channel,
    request: pb.PullRequest,
    memory: HostMemory,
    slots: Sequence[int],
    tail: int,
    on_block: Callable[[int], None],
    idle_timeout: float,
    metadata: Metadata = (),
) -> Pulled:
    """Pull the cache of `request.tokens` positions into `slots` (one per block of the sequence) and `tail`.

    The first `request.have_blocks` slots are not written. `on_block(i)` is called once complete block i is received and
    verified. `idle_timeout` is the longest time in seconds without a frame. `metadata` is sent with the call, for
    example the component token. Raises TransferError. After an error or a cancellation nothing more is written, and the
    blocks that were passed to `on_block` are valid.
    """
    began = time.monotonic()
    receiver = Receiver(request, memory, slots, tail, on_block)
    call = channel.unary_stream(
        wire.PULL, request_serializer=pb.PullRequest.SerializeToString, response_deserializer=None
    )(request, metadata=metadata)
    try:
        await _receive(call, receiver, idle_timeout)
    except grpc.aio.AioRpcError as error:
        raise wire.from_rpc(error) from error
    finally:
        call.cancel()
    if receiver.final is None:
        raise BrokenStream(f"the stream ended after {receiver.received} bytes without its last frame")
    return Pulled(receiver.final, receiver.received, time.monotonic() - began, receiver.wait_seconds)


async def _receive(call: grpc.aio.UnaryStreamCall[pb.PullRequest, bytes], receiver: Receiver, idle: float) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(idle) as timeout:
            async for raw in call:
                receiver.feed(raw)
                timeout.reschedule(loop.time() + idle)
    except TimeoutError:
        raise Stalled(f"the peer sent nothing for {idle:g} s after {receiver.received} bytes") from None


async def confirm(
    channel: grpc.aio.Channel,
    request: pb.ConfirmRequest,
    timeout: float,  # noqa: ASYNC109
    metadata: Metadata = (),
) -> None:
    """Confirm a pull: the sender answers whether the lease was held until now, and ends it.

    This is the last proof that adoption needs. Raises LeaseGone, TokenRefused, Stalled, PeerLost.
    """
    call = channel.unary_unary(
        wire.CONFIRM,
        request_serializer=pb.ConfirmRequest.SerializeToString,
        response_deserializer=pb.ConfirmReply.FromString,
    )
    try:
        reply: pb.ConfirmReply = await call(request, timeout=timeout, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        raise wire.from_rpc(error) from error
    if not reply.held:
        raise LeaseGone(f"the lease of request {request.request} lapsed before the pull was complete; prefill it again")
