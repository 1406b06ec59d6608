"""A worker that is told to stop: what runs finishes or is handed back, what waits goes elsewhere, nothing is held."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from tests.engine.harness import make_engine, prompt
from tests.worker.cluster import Node, offline, start, until
from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer import wire
from v4_worker import drain as drain_module
from v4_worker.drain import drain

LONG = 500  # tokens: more than is computed within a test's drain


@asynccontextmanager
async def nodes(*roles: str) -> AsyncIterator[list[Node]]:
    """Workers, each empty at the end."""
    running = [await Node.start(role) for role in roles]
    try:
        yield running
        for node in running:
            await node.empty()
    finally:
        for node in running:
            await node.stop()


def handed_back(node: Node, name: str = "r") -> dict[int, int]:
    """Choice -> length of its output, as the hand-back says."""
    tokens = [e.tokens for e in node.events[name, 0] if e.HasField("tokens")]
    assert all(not t.ids for t in tokens if t.finish == pb.MIGRATE)
    return {t.choice: t.start for t in tokens if t.finish == pb.MIGRATE}


async def hand_over(prefill: Node, decode: Node, ids: list[int], max_tokens: int = LONG) -> None:
    """Both legs of a request; the decode leg streams when this returns."""
    prefill.send(start(ids, pb.PREFILL, max_tokens=max_tokens))
    lease = (await prefill.event("started")).started.lease
    source = pb.Source(address=prefill.address, lease=lease)
    decode.send(start(ids, pb.DECODE, source=source, max_tokens=max_tokens))
    await decode.event("tokens")


async def test_what_runs_finishes_within_the_time() -> None:
    async with nodes("decode") as (node,):
        node.send(start(prompt(40), pb.WHOLE, max_tokens=100))
        await node.event("tokens")
        await drain(node.worker, 60.0)
        await until(lambda: len(node.tokens()) == 100)
        assert not handed_back(node)
        assert node.load.draining


async def test_streams_handed_back_at_the_deadline_go_on_elsewhere_with_the_same_tokens() -> None:
    sampling = Sampling(temperature=1.0, seed=3)
    expected = offline(prompt(300), max_tokens=LONG, n=2, sampling=sampling)
    async with nodes("decode", "decode") as (one, other):
        one.send(start(prompt(300), pb.WHOLE, max_tokens=LONG, n=2, sampling=sampling))
        await one.event("tokens")
        await drain(one.worker, 0.1)
        assert one.worker.idle, "the legs are over when the drain is"
        await until(lambda: len(handed_back(one)) == 2)
        for choice, length in handed_back(one).items():
            got = one.tokens(choice)
            assert sorted(got) == list(range(length)), "all of them were sent before the hand-back"
            output = [got[i] for i in range(length)]
            assert output == expected[choice][:length]
            rest = start(prompt(300), pb.WHOLE, f"c{choice}", max_tokens=LONG, output=output, sampling=sampling)
            rest.first_choice = choice
            other.send(rest)
        for choice, length in handed_back(one).items():
            name = f"c{choice}"
            await until(lambda n=name, c=choice, k=length: len(other.tokens(c, n)) == LONG - k)  # type: ignore[misc]
            more = other.tokens(choice, name)
            assert [more[i] for i in range(length, LONG)] == expected[choice][length:]


async def test_a_decode_leg_is_handed_back_behind_the_token_that_prefill_sent() -> None:
    async with nodes("prefill", "decode") as (prefill, decode):
        await hand_over(prefill, decode, prompt(300))
        await drain(decode.worker, 0.0)
        await until(lambda: handed_back(decode))
        assert handed_back(decode)[0] == len(decode.tokens()) + 1


async def test_a_choice_that_has_ended_is_not_handed_back() -> None:
    ids, sampling = prompt(40), Sampling(temperature=1.0, seed=1)
    first, second = offline(ids, max_tokens=40, n=2, sampling=sampling)
    stop = next(token for token in first if token not in second)
    async with nodes("decode") as (node,):
        message = start(ids, pb.WHOLE, max_tokens=LONG, n=2, sampling=sampling)
        message.stop_token_ids.append(stop)
        node.send(message)
        await until(lambda: len(node.tokens(1)) > 41)
        await drain(node.worker, 0.0)
        await until(lambda: handed_back(node))
        assert list(handed_back(node)) == [1]


async def test_a_request_that_waits_goes_elsewhere_at_once() -> None:
    node = await Node.start("decode", make_engine(max_sequences=1))
    node.send(start(prompt(40), pb.WHOLE, "runs", max_tokens=200))
    await node.event("tokens", "runs")
    node.send(start(prompt(50), pb.WHOLE, "waits"))
    await until(lambda: node.load.waiting)
    draining = asyncio.create_task(drain(node.worker, 60.0))
    assert (await node.event("failed", "waits")).failed.reason == pb.DRAINING
    assert not draining.done()
    await draining
    await until(lambda: len(node.tokens(request="runs")) == 200)
    await node.empty()
    await node.stop()


async def test_a_decode_leg_whose_cache_still_travels_goes_elsewhere_and_leaves_the_lease() -> None:
    prefill = await Node.start("prefill", make_engine(chunk_tokens=16))
    async with nodes("decode", "decode") as (one, other):
        prefill.send(start(prompt(2000), pb.PREFILL))
        lease = (await prefill.event("started")).started.lease
        source = pb.Source(address=prefill.address, lease=lease)
        one.send(start(prompt(2000), pb.DECODE, source=source))
        await until(lambda: any(lease.pull for lease in prefill.worker.leases._leases.values()))
        await drain(one.worker, 0.0)
        assert (await one.event("failed")).failed.reason == pb.DRAINING
        other.send(start(prompt(2000), pb.DECODE, attempt=1, source=source))
        await until(lambda: len(other.tokens(attempt=1)) == 11)
        merged = prefill.tokens() | other.tokens(attempt=1)
        assert [merged[i] for i in range(12)] == offline(prompt(2000))[0]
    await prefill.empty()
    await prefill.stop()


async def test_a_prompt_that_is_not_done_at_the_deadline_is_handed_back_whole() -> None:
    node = await Node.start("prefill", make_engine(chunk_tokens=16))
    node.send(start(prompt(4000), pb.PREFILL, "prefill"))
    await node.event("started", "prefill")
    node.send(start(prompt(4000, seed=9), pb.WHOLE, "whole"))
    await node.event("started", "whole")
    await drain(node.worker, 0.0)
    for name in ("prefill", "whole"):
        assert (await node.event("failed", name)).failed.reason == pb.DRAINING
    await node.empty()
    await node.stop()


async def test_a_parked_cache_may_be_pulled_until_the_deadline_and_then_ends() -> None:
    async with nodes("prefill", "decode") as (prefill, decode):
        for name in ("pulled", "not"):
            prefill.send(start(prompt(300), pb.PREFILL, name))
            await prefill.event("tokens", name)
        started = (await prefill.event("started", "pulled")).started
        drained = asyncio.create_task(drain(prefill.worker, 1.5))
        await until(lambda: prefill.load.draining)
        source = pb.Source(address=prefill.address, lease=started.lease)
        decode.send(start(prompt(300), pb.DECODE, "pulled", source=source))
        await until(lambda: len(decode.tokens(request="pulled")) == 11)
        assert not prefill.events["not", 0][-1].HasField("failed")
        await drained
        assert (await prefill.event("failed", "not")).failed.reason == pb.DRAINING


class Reader:
    """A puller that reads when it is told to, over a connection that buffers less than a frame."""

    ids = prompt(6000)
    small_windows = (("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 16 << 10))

    def __init__(self, node: Node, channel: grpc.aio.Channel, lease: int) -> None:
        self.request = pb.PullRequest(
            request="r", lease=lease, fingerprint=node.worker.context.fingerprint, tokens=len(self.ids)
        )
        method = channel.unary_stream(
            wire.PULL, request_serializer=pb.PullRequest.SerializeToString, response_deserializer=None
        )
        self.call = method(self.request)
        self.frames = aiter(self.call)
        self._confirm = channel.unary_unary(
            wire.CONFIRM,
            request_serializer=pb.ConfirmRequest.SerializeToString,
            response_deserializer=pb.ConfirmReply.FromString,
        )

    @classmethod
    def channel(cls, node: Node) -> grpc.aio.Channel:
        """To a worker."""
        return grpc.aio.insecure_channel(node.address, options=cls.small_windows)

    @classmethod
    async def begin(cls, node: Node, channel: grpc.aio.Channel) -> "Reader":
        """Of a finished cache, its first frame read, the worker in the middle of the rest."""
        node.send(start(cls.ids, pb.PREFILL))
        await node.event("tokens")
        lease = (await node.event("started")).started.lease
        reader = cls(node, channel, lease)
        await anext(reader.frames)
        assert node.worker.leases._leases[lease].pull is not None
        return reader

    async def finish(self) -> bool:
        """Read on to the end and confirm; whether the lease was held."""
        async for _ in self.frames:
            pass
        reply: pb.ConfirmReply = await self._confirm(pb.ConfirmRequest(request="r", lease=self.request.lease))
        return reply.held


async def test_a_transfer_that_is_being_read_at_the_deadline_is_read_to_its_end() -> None:
    async with nodes("prefill") as (node,), Reader.channel(node) as channel:
        reader = await Reader.begin(node, channel)
        draining = asyncio.create_task(drain(node.worker, 0.0))
        await until(lambda: node.load.draining)
        assert not draining.done()
        assert await reader.finish()
        await draining
        assert not any(event.HasField("failed") for event in node.events["r", 0])


async def test_a_reader_that_stands_still_delays_the_end_by_a_bounded_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module, "READ_SECONDS", 1.5)
    async with nodes("prefill") as (node,), Reader.channel(node) as channel:
        reader = await Reader.begin(node, channel)
        began = time.monotonic()
        await drain(node.worker, 0.0)
        assert time.monotonic() - began >= 1.5
        assert (await node.event("failed")).failed.reason == pb.DRAINING
        reader.call.cancel()


async def test_a_second_signal_cuts_it_short() -> None:
    async with nodes("decode") as (node,):
        node.send(start(prompt(40), pb.WHOLE, max_tokens=LONG))
        await node.event("tokens")
        began = time.monotonic()
        await drain(node.worker, 600.0, at_once=lambda: len(node.tokens()) > 20)
        assert time.monotonic() - began < 60
        await until(lambda: handed_back(node))


async def test_what_was_handed_back_is_sent_before_the_streams_end() -> None:
    """No matter how quickly the process ends behind its drain."""
    node = await Node.start("decode")
    for i in range(4):
        node.send(start(prompt(20, seed=i), pb.WHOLE, f"r{i}", max_tokens=LONG))
    for i in range(4):
        await node.event("tokens", f"r{i}")
    await drain(node.worker, 0.0)
    began = time.monotonic()
    await node.server.stop(30.0)
    assert time.monotonic() - began < 20, "streams end by themselves, not by the end of the grace"
    await asyncio.wait_for(node._reader, 30)
    assert all(handed_back(node, f"r{i}") for i in range(4))
    await node.leave()
