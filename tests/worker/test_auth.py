"""The component token over real gRPC: who shows it is served, who does not is told so, health is open."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.engine.harness import prompt
from tests.worker.cluster import Node, offline, start, until
from v4_core.token import TokenFile
from v4_core.v1 import worker_pb2 as pb
from v4_core.v1 import worker_pb2_grpc as pb_grpc
from v4_kvtransfer import wire

Call = Callable[[grpc.aio.Channel, Any], Awaitable[object]]


def token(folder: Path, secret: str = "secret") -> TokenFile:
    """A token file of its own."""
    file = folder / secret
    file.write_text(secret)
    return TokenFile(file)


async def describe(channel: grpc.aio.Channel, shown: Any) -> object:
    """Worker.Describe."""
    return await pb_grpc.WorkerStub(channel).Describe(pb.DescribeRequest(), metadata=shown)


async def serve(channel: grpc.aio.Channel, shown: Any) -> object:
    """Worker.Serve, by a router that says nothing yet."""
    call = pb_grpc.WorkerStub(channel).Serve(metadata=shown)
    return await call.read()


async def pull(channel: grpc.aio.Channel, shown: Any) -> object:
    """Transfer.Pull."""
    method = channel.unary_stream(
        wire.PULL, request_serializer=pb.PullRequest.SerializeToString, response_deserializer=None
    )
    return await method(pb.PullRequest(), metadata=shown).read()


async def confirm(channel: grpc.aio.Channel, shown: Any) -> object:
    """Transfer.Confirm."""
    method = channel.unary_unary(
        wire.CONFIRM, request_serializer=pb.ConfirmRequest.SerializeToString, response_deserializer=None
    )
    return await method(pb.ConfirmRequest(), metadata=shown)


@pytest.mark.parametrize("call", [describe, serve, pull, confirm])
@pytest.mark.parametrize("shown", [(), (("authorization", "Bearer wrong"),), (("authorization", "secret"),)])
async def test_a_caller_without_the_token_is_refused(tmp_path: Path, call: Call, shown: Any) -> None:
    node = await Node.start("prefill", token=token(tmp_path))
    async with grpc.aio.insecure_channel(node.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError, match="--token-file") as refused:
            await call(channel, shown)
    assert refused.value.code() == grpc.StatusCode.UNAUTHENTICATED
    await node.stop()


async def test_health_is_open(tmp_path: Path) -> None:
    node = await Node.start("prefill", token=token(tmp_path))
    async with grpc.aio.insecure_channel(node.address) as channel:
        reply = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING
    await node.stop()


async def test_workers_of_one_token_exchange_caches_through_its_change(tmp_path: Path) -> None:
    shared = token(tmp_path)
    prefill, decode = [await Node.start(role, token=shared) for role in ("prefill", "decode")]
    for name in ("before", "after"):
        prefill.send(start(prompt(300), pb.PREFILL, name))
        lease = (await prefill.event("started", name)).started.lease
        source = pb.Source(address=prefill.address, lease=lease)
        decode.send(start(prompt(300), pb.DECODE, name, source=source))
        await until(lambda name=name: len(decode.tokens(request=name)) == 11)  # type: ignore[misc]
        merged = prefill.tokens(request=name) | decode.tokens(request=name)
        assert [merged[i] for i in range(12)] == offline(prompt(300))[0]
        (tmp_path / "secret").write_text("another")
    await prefill.stop()
    await decode.stop()


async def test_workers_of_different_tokens_say_what_is_wrong(tmp_path: Path) -> None:
    prefill = await Node.start("prefill", token=token(tmp_path))
    decode = await Node.start("decode", token=token(tmp_path, "other"))
    prefill.send(start(prompt(300), pb.PREFILL))
    source = pb.Source(address=prefill.address, lease=(await prefill.event("started")).started.lease)
    decode.send(start(prompt(300), pb.DECODE, source=source))
    failed = (await decode.event("failed")).failed
    assert failed.reason == pb.TRANSFER
    assert "component token" in failed.message
    prefill.cancel("r")
    await prefill.empty()
    await decode.empty()
    await prefill.stop()
    await decode.stop()
