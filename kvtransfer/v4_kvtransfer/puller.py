"""The side that wants a cache: one pull over gRPC into host memory, and its confirmation. Knows no engine."""

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
    """A whole cache that arrived; to be adopted only after confirm()."""

    final: pb.Final
    bytes: int  # of the stream, without headers
    seconds: float  # from the call to the last frame
    wait_seconds: float  # of these, from a frame that says "nothing to send now" to the next that brings something


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

    The first `request.have_blocks` slots are not written. `on_block(i)` is called as complete block i is whole and
    verified. `idle_timeout`: seconds without a frame. `metadata`: what the call carries, the component token say.
    Raises TransferError; then, as after cancellation, nothing more is written and the blocks named to `on_block` are
    sound.
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
    """The last proof of adoption: the lease was held until now, and ends.

    Raises LeaseGone, TokenRefused, Stalled, PeerLost.
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
