"""Provider and puller over a real loopback connection: whole, progressive and repeated pulls, and every bad end."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc.aio
import numpy as np
import pytest

from tests.kvtransfer.support import EMPTY, FLASH, Provider, filled, positions, pull_request, tiny
from v4_core.geometry import CacheGeometry, total
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer import wire
from v4_kvtransfer.errors import (
    BrokenStream,
    CorruptFrame,
    FingerprintMismatch,
    LeaseGone,
    PeerLost,
    PullMismatch,
    StaleAttempt,
    Stalled,
)
from v4_kvtransfer.frames import MAX_PAYLOAD
from v4_kvtransfer.leases import Lease
from v4_kvtransfer.memory import HostMemory
from v4_kvtransfer.puller import Pulled, confirm, pull

TOKENS = 700
SLOTS = [3, 1, 2]  # the provider's


async def until(condition: Callable[[], bool], seconds: float = 5.0) -> None:
    """Poll until it holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        await asyncio.sleep(0.002)


class Target:
    """A decode worker's memory, and its pull."""

    def __init__(self, slack: int = 5) -> None:
        self.memory: HostMemory = filled(tiny(slack), 6, tails=2)
        self.blocks: list[int] = []

    async def pull(self, channel: grpc.aio.Channel, request: pb.PullRequest, idle: float = 5.0) -> Pulled:
        slots = [4, 0, 5, 2][: self.memory.geometry.slots(request.tokens)]
        return await pull(channel, request, self.memory, slots, 1, self.blocks.append, idle)

    def check(self, source: HostMemory, blocks: list[int], tail: bool = True) -> None:
        """These blocks were announced and are the source's; the tail too."""
        assert self.blocks == blocks
        for block in blocks:
            for offset, length in source.geometry.block_spans:
                ours = self.memory.slabs[[4, 0, 5, 2][block], offset : offset + length]
                assert np.array_equal(ours, source.slabs[SLOTS[block], offset : offset + length])
        assert (self.memory.slabs[[1, 3]] == EMPTY).all()
        assert (self.memory.tails[0] == EMPTY).all()
        if tail:
            rows = positions(self.memory.geometry, TOKENS, self.memory.tails[1])
            assert rows == positions(source.geometry, TOKENS, source.tails[0])


@pytest.fixture
def provider() -> Provider:
    return Provider(filled(tiny(), 4, seed=3))


async def test_a_whole_pull_and_its_confirmation(provider: Provider) -> None:
    lease, target = provider.lease(TOKENS, SLOTS), Target()
    async with provider.channel() as channel:
        pulled = await target.pull(channel, pull_request(lease))
        await confirm(channel, pb.ConfirmRequest(request="r", attempt=0, lease=lease.id), 5.0)
        with pytest.raises(LeaseGone, match="lapsed"):
            await confirm(channel, pb.ConfirmRequest(request="r", attempt=0, lease=lease.id), 5.0)
    target.check(provider.memory, [0, 1])
    assert pulled.final == pb.Final(tokens=TOKENS, firsts=[pb.First(choice=0, id=7)])
    assert pulled.bytes == provider.memory.geometry.sequence_bytes(TOKENS)
    assert 0 == pulled.wait_seconds < pulled.seconds
    assert provider.ended == [(lease.id, "released")]
    assert sum(provider.sent) == pulled.bytes
    assert provider.leases.held == 0


async def test_blocks_that_the_puller_has_do_not_travel(provider: Provider) -> None:
    lease, target = provider.lease(TOKENS, SLOTS), Target()
    async with provider.channel() as channel:
        await target.pull(channel, pull_request(lease, have_blocks=1))
    target.check(provider.memory, [1])
    assert (target.memory.slabs[4] == EMPTY).all()


@pytest.mark.parametrize(
    ("geometry", "tokens"),
    [(tiny(), 120 * 256 + 9), (CacheGeometry(FLASH, "bf16", "bf16"), 700)],
    ids=["many blocks a frame", "many frames a block"],
)
async def test_blocks_and_frames_of_any_proportion(geometry: CacheGeometry, tokens: int) -> None:
    blocks = geometry.slots(tokens)
    provider, target, arrived = Provider(filled(geometry, blocks, seed=1)), filled(geometry, blocks), list[int]()
    lease = provider.lease(tokens, range(blocks))
    async with provider.channel() as channel:
        pulled = await pull(channel, pull_request(lease), target, range(blocks), 0, arrived.append, 5.0)
    assert pulled.bytes > 2 * MAX_PAYLOAD
    assert arrived == list(range(tokens // 256))
    for block in range(blocks):
        for offset, length in geometry.open_block_spans(min(256, tokens - 256 * block)):
            got, sent = (m.slabs[block, offset : offset + length] for m in (target, provider.memory))
            assert np.array_equal(got, sent)
    assert positions(geometry, tokens, target.tails[0]) == positions(geometry, tokens, provider.memory.tails[0])


async def test_blocks_arrive_while_prefill_computes(provider: Provider) -> None:
    lease, target = provider.leases.grant("r", 0, TOKENS), Target()
    async with provider.channel() as channel:
        pulling = asyncio.create_task(target.pull(channel, pull_request(lease), idle=0.5))
        for done in (1, 2):
            provider.leases.progress(lease.id, SLOTS[:done], done)
            await until(lambda done=done: len(target.blocks) == done)  # type: ignore[misc]
            await asyncio.wait([pulling], timeout=0.1)  # what prefill computes meanwhile
        provider.leases.finish(lease.id, SLOTS, 0, [])
        pulled = await pulling
    target.check(provider.memory, [0, 1])
    assert 0.15 < pulled.wait_seconds < pulled.seconds


async def test_silence_of_prefill_is_no_stall(provider: Provider) -> None:
    """Prefill computes for three idle timeouts: the keep-alive frames carry the pull over."""
    lease, target = provider.leases.grant("r", 0, TOKENS), Target()
    async with provider.channel() as channel:
        pulling = asyncio.create_task(target.pull(channel, pull_request(lease), idle=0.3))
        await asyncio.wait([pulling], timeout=0.9)
        provider.leases.finish(lease.id, SLOTS, 0, [])
        assert (await pulling).wait_seconds > 0.8


async def test_a_second_decode_takes_over(provider: Provider) -> None:
    lease, first, second = provider.leases.grant("r", 0, TOKENS), Target(), Target()
    async with provider.channel() as channel:
        old = asyncio.create_task(first.pull(channel, pull_request(lease, attempt=1)))
        provider.leases.progress(lease.id, SLOTS[:1], 1)
        await until(lambda: first.blocks == [0])
        new = asyncio.create_task(second.pull(channel, pull_request(lease, attempt=2)))
        with pytest.raises(StaleAttempt, match="took over, by attempt 2"):
            await old
        with pytest.raises(StaleAttempt, match="attempt 1 of request r is over"):
            await first.pull(channel, pull_request(lease, attempt=1))
        provider.leases.finish(lease.id, SLOTS, 0, [])
        await new
        with pytest.raises(LeaseGone):
            await confirm(channel, pb.ConfirmRequest(request="r", attempt=1, lease=lease.id), 5.0)
        await confirm(channel, pb.ConfirmRequest(request="r", attempt=2, lease=lease.id), 5.0)
    first.check(provider.memory, [0], tail=False)
    second.check(provider.memory, [0, 1])


async def test_the_same_lease_is_pulled_again(provider: Provider) -> None:
    lease = provider.lease(TOKENS, SLOTS)
    async with provider.channel() as channel:
        for attempt in (0, 1):
            target = Target(slack=attempt)
            await target.pull(channel, pull_request(lease, attempt))
            target.check(provider.memory, [0, 1])


async def test_a_cancelled_pull_detaches_and_writes_no_more(provider: Provider) -> None:
    lease, target = provider.leases.grant("r", 0, TOKENS), Target()
    async with provider.channel() as channel:
        pulling = asyncio.create_task(target.pull(channel, pull_request(lease)))
        provider.leases.progress(lease.id, SLOTS[:1], 1)
        await until(lambda: target.blocks == [0])
        pulling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await pulling
        await until(lambda: lease.pull is None)
        provider.leases.finish(lease.id, SLOTS, 0, [])
        assert provider.leases.held == 1
        provider.leases.drop(lease.id)
    target.check(provider.memory, [0], tail=False)
    assert (target.memory.tails == EMPTY).all()
    assert provider.ended == [(lease.id, "dropped")]
    assert sum(provider.sent) == total(target.memory.geometry.block_spans)


async def test_a_provider_that_dies_is_a_lost_peer(provider: Provider) -> None:
    lease, target = provider.leases.grant("r", 0, TOKENS), Target()
    async with provider.channel() as channel:
        pulling = asyncio.create_task(target.pull(channel, pull_request(lease)))
        provider.leases.progress(lease.id, SLOTS[:1], 1)
        await until(lambda: target.blocks == [0])
        await provider.server.stop(0)
        with pytest.raises(PeerLost):
            await pulling
        with pytest.raises(PeerLost):
            await confirm(channel, pb.ConfirmRequest(request="r", attempt=0, lease=lease.id), 1.0)
    target.check(provider.memory, [0], tail=False)


def _drop(provider: Provider, lease: Lease) -> None:
    provider.leases.drop(lease.id)


@pytest.mark.parametrize(("end", "message"), [(_drop, "the request has ended")])
async def test_a_lease_that_ends_ends_its_pull(
    provider: Provider, end: Callable[[Provider, Lease], None], message: str
) -> None:
    lease, target = provider.leases.grant("r", 0, TOKENS), Target()
    async with provider.channel() as channel:
        pulling = asyncio.create_task(target.pull(channel, pull_request(lease)))
        provider.leases.progress(lease.id, SLOTS[:1], 1)
        await until(lambda: target.blocks == [0])
        end(provider, lease)
        provider.memory.slabs.fill(0)  # the owner uses its memory for something else, in the same step of the loop
        with pytest.raises(LeaseGone, match=message):
            await pulling
    assert (target.memory.slabs[0] == EMPTY).all()


async def test_a_lease_expires_and_cannot_be_pulled() -> None:
    provider = Provider(filled(tiny(), 4, seed=3), ttl=0.05)
    lease, target = provider.lease(TOKENS, SLOTS), Target()
    sweeping = asyncio.create_task(provider.leases.sweep(0.01))
    async with provider.channel() as channel:
        await until(lambda: provider.leases.held == 0)
        with pytest.raises(LeaseGone, match="prefill it again"):
            await target.pull(channel, pull_request(lease))
    sweeping.cancel()
    assert provider.ended == [(lease.id, "expired")]
    assert (target.memory.slabs == EMPTY).all()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"fingerprint": "other"}, FingerprintMismatch, r"differ in fingerprint \(f+ here, other there\)"),
        ({"tokens": 701}, PullMismatch, "has 700 tokens, the puller expects 701"),
        ({"request": "s"}, LeaseGone, "of request s"),
        ({"lease": 1}, LeaseGone, "no lease 1"),
    ],
)
async def test_what_does_not_fit_is_refused(
    provider: Provider, changed: dict[str, Any], error: type[Exception], message: str
) -> None:
    lease, target = provider.lease(TOKENS, SLOTS), Target()
    async with provider.channel() as channel:
        with pytest.raises(error, match=message):
            await target.pull(channel, pull_request(lease, **changed))
    assert (target.memory.slabs == EMPTY).all()
    assert (target.memory.tails == EMPTY).all()
    assert lease.pull is None


async def test_more_blocks_than_there_are_is_refused_by_the_provider_too(provider: Provider) -> None:
    lease = provider.lease(TOKENS, SLOTS)
    async with provider.channel() as channel:
        method = channel.unary_stream(
            wire.PULL, request_serializer=pb.PullRequest.SerializeToString, response_deserializer=None
        )
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await method(pull_request(lease, have_blocks=3)).read()
        assert raised.value.code() == grpc.StatusCode.INVALID_ARGUMENT


@contextlib.asynccontextmanager
async def _peer(frames: list[bytes], left: asyncio.Event | None = None) -> AsyncIterator[grpc.aio.Channel]:
    """A peer that answers any Pull with these frames, then ends the stream, or hangs until the puller has `left`."""

    async def answer(request: bytes, context: object) -> AsyncIterator[bytes]:
        for frame in frames:
            yield frame
        if left:
            try:
                await asyncio.Event().wait()
            finally:
                left.set()

    server = grpc.aio.server()
    methods = {"Pull": grpc.unary_stream_rpc_method_handler(answer)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(wire.SERVICE, methods),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        yield channel
    await server.stop(0)


async def _recorded(provider: Provider, lease: Lease) -> list[bytes]:
    """The frames that a sound provider sends."""
    async with provider.channel() as channel:
        method = channel.unary_stream(
            wire.PULL, request_serializer=pb.PullRequest.SerializeToString, response_deserializer=None
        )
        return [frame async for frame in method(pull_request(lease))]


async def test_a_peer_that_serves_damaged_streams(provider: Provider) -> None:
    lease = provider.lease(TOKENS, SLOTS)
    hello, *data, final = await _recorded(provider, lease)
    cases: list[tuple[list[bytes], type[Exception]]] = [
        ([], BrokenStream),
        ([hello, *data], BrokenStream),
        ([hello, *data, final, final], BrokenStream),
        ([hello, final], BrokenStream),
        ([hello, *data, *data, final], BrokenStream),
        ([*data, hello, final], BrokenStream),
        ([hello, *(frame[:-1] for frame in data), final], CorruptFrame),
        ([hello, *(frame[:-1] + bytes([frame[-1] ^ 1]) for frame in data), final], CorruptFrame),
        ([b"HTTP/1.1 200 OK"], CorruptFrame),
    ]
    for frames, error in cases:
        target = Target()
        async with _peer(frames) as channel:
            with pytest.raises(error):
                await target.pull(channel, pull_request(lease))
        assert target.blocks == ([0, 1] if frames[:2] == [hello, data[0]] else [])


async def test_waiting_costs_one_frame_a_period(provider: Provider) -> None:
    lease = provider.leases.grant("r", 0, TOKENS)
    provider.leases.progress(lease.id, SLOTS[:1], 1)
    recording = asyncio.create_task(_recorded(provider, lease))
    await until(lambda: lease.pull is not None)
    provider.leases.progress(lease.id, SLOTS[:2], 2)
    await asyncio.wait([recording], timeout=0.3)
    provider.leases.finish(lease.id, SLOTS, 0, [])
    assert len(await recording) < 16  # 5 that bring something, 2 on running dry, then 0.3 s / 0.05 s


async def test_a_puller_that_finds_damage_leaves_at_once() -> None:
    left = asyncio.Event()
    async with _peer([b"noise"], left) as channel:
        with pytest.raises(CorruptFrame) as raised:
            await Target().pull(channel, pb.PullRequest(request="r", tokens=TOKENS))
        await asyncio.wait_for(left.wait(), 5.0)
    assert raised.traceback  # held until here: the call is not ended by being collected


async def test_a_puller_that_gives_up_lets_the_provider_know() -> None:
    provider = Provider(filled(tiny(), 4, seed=3), keepalive=60.0)
    lease = provider.leases.grant("r", 0, TOKENS)
    async with provider.channel() as channel:
        with pytest.raises(Stalled) as raised:
            await Target().pull(channel, pull_request(lease), idle=0.1)
        await until(lambda: lease.pull is None)
    assert raised.traceback  # held until here: the call is not ended by being collected


async def test_a_silent_peer_is_stalled(provider: Provider) -> None:
    lease = provider.lease(TOKENS, SLOTS)
    hello = (await _recorded(provider, lease))[0]
    for frames in ([], [hello]):
        async with _peer(frames, asyncio.Event()) as channel:
            with pytest.raises(Stalled, match=r"nothing for 0\.2 s"):
                await Target().pull(channel, pull_request(lease), idle=0.2)


async def test_a_puller_that_does_not_read_loses_its_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream is larger than what connections buffer, and nobody reads it."""
    monkeypatch.setattr("v4_kvtransfer.provider.WRITE_SECONDS", 0.2)
    geometry = tiny()
    blocks = (64 << 20) // geometry.slab_bytes
    provider = Provider(filled(geometry, 1, seed=3))
    lease = provider.lease(blocks * 256, [0] * blocks)
    async with provider.channel() as channel:
        method = channel.unary_stream(
            wire.PULL, request_serializer=pb.PullRequest.SerializeToString, response_deserializer=None
        )
        call = method(pull_request(lease))
        await call.read()
        assert lease.pull is not None
        await until(lambda: lease.pull is None)
        call.cancel()
