"""Prefill and decode legs over real gRPC: the right tokens, and nothing held after any end."""

import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import grpc.aio
import pytest

from tests.engine.harness import damage, make_engine, prompt
from tests.tiny import tiny_config
from tests.worker.cluster import Node, offline, start, until
from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb
from v4_engine.options import SchedulerConfig
from v4_worker import channels


@asynccontextmanager
async def pair(lease_seconds: float = 30.0) -> AsyncIterator[tuple[Node, Node]]:
    """One prefill and one decode worker, empty at the end."""
    prefill, decode = [await Node.start(role, lease_seconds=lease_seconds) for role in ("prefill", "decode")]
    try:
        yield prefill, decode
        await prefill.empty()
        await decode.empty()
    finally:
        await prefill.stop()
        await decode.stop()


def complete(node: Node, name: str, count: int) -> bool:
    """Whether a request has so many tokens."""
    return len(node.tokens(request=name)) == count


async def hand_over(prefill: Node, decode: Node, ids: list[int], **options: object) -> None:
    """Start both legs as the router does."""
    prefill.send(start(ids, pb.PREFILL, **options))  # type: ignore[arg-type]
    name = str(options.get("name", "r"))
    started = (await prefill.event("started", name)).started
    source = pb.Source(address=prefill.address, lease=started.lease)
    decode.send(start(ids, pb.DECODE, source=source, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [1, 3, 256, 700])
async def test_a_handed_over_request_gives_the_offline_tokens(n: int) -> None:
    async with pair() as (prefill, decode):
        await hand_over(prefill, decode, prompt(n))
        await until(lambda: len(decode.tokens()) == 11)
        merged = prefill.tokens() | decode.tokens()
        assert [merged[i] for i in range(12)] == offline(prompt(n))[0]
        adopted = (await decode.event("adopted")).adopted
        assert adopted.bytes == decode.worker.context.memory.geometry.sequence_bytes(n)
        assert adopted.blocks_pulled == n // 256


async def test_sampled_choices_fork_on_the_decode_worker() -> None:
    sampling = Sampling(temperature=1.0, seed=11)
    async with pair() as (prefill, decode):
        await hand_over(prefill, decode, prompt(300), n=3, sampling=sampling)
        await until(lambda: all(len(decode.tokens(c)) == 11 for c in range(3)))
        expected = offline(prompt(300), sampling=sampling, n=3)
        assert len({tuple(e) for e in expected}) == 3
        for choice in range(3):
            merged = prefill.tokens(choice) | decode.tokens(choice)
            assert [merged[i] for i in range(12)] == expected[choice]


async def test_the_second_request_pulls_only_what_is_new() -> None:
    async with pair() as (prefill, decode):
        for name in ("a", "b"):
            await hand_over(prefill, decode, prompt(700), name=name)
            await until(partial(complete, decode, name, 11))
        adopted = (await decode.event("adopted", "b")).adopted
        assert (adopted.blocks_pulled, adopted.blocks_local) == (0, 2)
        assert (await prefill.event("started", "b")).started.cached_tokens == 512
        assert prefill.tokens(request="b") == prefill.tokens(request="a")
        assert decode.tokens(request="b") == decode.tokens(request="a")


async def test_a_request_that_ends_with_its_first_token_needs_no_decode_worker() -> None:
    prefill = await Node.start("prefill")
    prefill.send(start(prompt(300), pb.PREFILL, max_tokens=1))
    assert (await prefill.event("tokens")).tokens.finish == pb.LENGTH
    await prefill.empty()
    await prefill.stop()


@pytest.mark.parametrize("role", ["prefill", "decode"])
async def test_either_role_does_a_whole_request_and_continues_one(role: str) -> None:
    node = await Node.start(role)
    expected = offline(prompt(300))[0]
    node.send(start(prompt(300), pb.WHOLE))
    await until(lambda: len(node.tokens()) == 12)
    assert [node.tokens()[i] for i in range(12)] == expected
    node.send(start(prompt(300), pb.WHOLE, "later", output=expected[:5]))
    await until(lambda: len(node.tokens(request="later")) == 7)
    assert [node.tokens(request="later")[i] for i in range(5, 12)] == expected[5:]
    await node.empty()
    await node.stop()


async def test_one_message_per_step_carries_all_events() -> None:
    node = await Node.start("decode")
    for i in range(4):
        node.send(start(prompt(20, seed=i), pb.WHOLE, f"r{i}", max_tokens=100))
    await until(lambda: all(len(node.tokens(request=f"r{i}")) == 100 for i in range(4)))
    assert node.messages < 200
    await node.stop()


@pytest.mark.parametrize("moment", ["at once", "started", "first token", "adopted"])
async def test_cancel_at_any_moment_frees_both_sides(moment: str) -> None:
    async with pair() as (prefill, decode):
        ids = prompt(2500)
        if moment == "at once":
            prefill.send(start(ids, pb.PREFILL, max_tokens=500))
        else:
            await hand_over(prefill, decode, ids, max_tokens=500)
            if moment == "first token":
                await prefill.event("tokens")
            if moment == "adopted":
                await decode.event("adopted")
        decode.cancel("r")
        prefill.cancel("r")


async def test_a_lost_router_frees_what_it_started() -> None:
    prefill, decode = await Node.start("prefill"), await Node.start("decode")
    await hand_over(prefill, decode, prompt(600), max_tokens=500)
    await decode.event("adopted")
    decode._reader.cancel()
    prefill._reader.cancel()
    for node in (prefill, decode):
        await until(partial(getattr, node.worker, "idle"))
        load = await node.worker.engine.call(lambda engine: engine.scheduler.allocator.tails_free)
        assert load == 6
    await prefill.stop()
    await decode.stop()


async def test_an_unpulled_lease_expires() -> None:
    async with pair(lease_seconds=0.2) as (prefill, _):
        prefill.send(start(prompt(300), pb.PREFILL))
        failed = (await prefill.event("failed")).failed
        assert failed.reason == pb.TRANSFER
        assert "no decode worker pulled" in failed.message


async def test_another_decode_worker_pulls_the_same_lease_again() -> None:
    async with pair() as (prefill, decode):
        other = await Node.start("decode")
        prefill.send(start(prompt(2500), pb.PREFILL))
        started = (await prefill.event("started")).started
        source = pb.Source(address=prefill.address, lease=started.lease)
        other.send(start(prompt(2500), pb.DECODE, source=source))
        await until(lambda: other.worker.legs)
        await other.stop()
        decode.send(start(prompt(2500), pb.DECODE, attempt=1, source=source))
        await until(lambda: len(decode.tokens(attempt=1)) == 11)
        merged = prefill.tokens() | decode.tokens(attempt=1)
        assert [merged[i] for i in range(12)] == offline(prompt(2500))[0]


async def test_prefill_killed_mid_transfer_fails_the_decode_leg_and_leaves_its_blocks() -> None:
    prefill, decode = await Node.start("prefill", make_engine(chunk_tokens=16)), await Node.start("decode")
    await hand_over(prefill, decode, prompt(3000))
    await until(lambda: prefill.worker.load.queued_tokens and prefill.worker.load.queued_tokens < 2500)
    await prefill.stop()
    failed = (await decode.event("failed")).failed
    assert failed.reason == pb.TRANSFER
    assert not decode.tokens()
    await decode.empty()
    decode.send(start(prompt(3000), pb.WHOLE, "again"))
    await until(lambda: len(decode.tokens(request="again")) == 12)
    assert [decode.tokens(request="again")[i] for i in range(12)] == offline(prompt(3000))[0]
    await decode.stop()


async def test_other_weights_are_refused() -> None:
    prefill, decode = await Node.start("prefill"), await Node.start("decode", fingerprint="another")
    await hand_over(prefill, decode, prompt(300))
    failed = (await decode.event("failed")).failed
    assert failed.reason == pb.TRANSFER
    assert "fingerprint" in failed.message
    prefill.cancel("r")
    await decode.empty()
    await prefill.empty()
    await prefill.stop()
    await decode.stop()


async def test_another_end_of_answers_is_refused_by_its_name() -> None:
    prefill = await Node.start("prefill", fingerprint="weights=a eos_token_id=1")
    decode = await Node.start("decode", fingerprint="weights=a eos_token_id=1,5")
    await hand_over(prefill, decode, prompt(300))
    failed = (await decode.event("failed")).failed
    assert failed.reason == pb.TRANSFER
    assert "they differ in eos_token_id (1 here, 1,5 there); pair workers of one revision" in failed.message
    prefill.cancel("r")
    await prefill.stop()
    await decode.stop()


@pytest.mark.parametrize("place", [0, 1])
async def test_any_id_of_a_list_ends_an_answer(place: int) -> None:
    whole = offline(prompt(40))[0]
    end = whole[3]
    assert end not in whole[:3]
    eos = [end, 511] if place == 0 else [0, end]
    assert not set(eos) - {end} & set(whole)
    node = await Node.start("decode", make_engine(tiny_config(eos_token_id=eos)))
    asked = start(prompt(40), pb.WHOLE)
    asked.ignore_eos = False
    node.send(asked)
    await until(lambda: len(node.tokens()) == 4)
    await node.empty()
    assert [node.tokens()[i] for i in range(4)] == whole[:4]
    finishes = [e.tokens.finish for e in node.events["r", 0] if e.HasField("tokens")]
    assert finishes[-1] == pb.STOP
    await node.stop()


async def test_a_higher_attempt_replaces_and_a_lower_one_is_ignored() -> None:
    node = await Node.start("decode")
    node.send(start(prompt(40), pb.WHOLE, attempt=1, max_tokens=2000))
    await node.event("tokens", attempt=1)
    node.send(start(prompt(40), pb.WHOLE, attempt=0))
    node.send(start(prompt(40), pb.WHOLE, attempt=2))
    await until(lambda: len(node.tokens(attempt=2)) == 12)
    assert not node.events["r", 0]
    await node.empty()
    await node.stop()


@pytest.mark.parametrize(
    ("message", "reason", "text"),
    [
        (start([], pb.WHOLE), pb.INVALID, "no tokens"),
        (start([600], pb.WHOLE), pb.INVALID, "vocabulary"),
        (start([5], pb.PREFILL), pb.INVALID, "does not serve legs of phase PREFILL"),
        (start([5] * 9000, pb.WHOLE), pb.INVALID, "8192"),
        (start([5], pb.WHOLE, n=7), pb.INVALID, "fewer choices"),
        (start([5], pb.WHOLE, max_tokens=0), pb.INVALID, "max_tokens"),
        (start([5], pb.DECODE, source=pb.Source(address="127.0.0.1:1", lease=1)), pb.TRANSFER, ""),
        (start([5] * 3000, pb.WHOLE, max_tokens=4000, deadline_ms=50), pb.DEADLINE, "0.05 s"),
    ],
)
async def test_what_cannot_be_done_is_said(message: pb.Start, reason: int, text: str) -> None:
    node = await Node.start("decode")
    node.send(message)
    failed = (await node.event("failed")).failed
    assert failed.reason == reason
    assert text in failed.message
    await node.empty()
    await node.stop()


async def test_a_full_decode_worker_refuses_and_a_full_queue_too() -> None:
    async with pair() as (prefill, _):
        small = await Node.start("decode", make_engine(max_sequences=1, max_waiting=1))
        small.send(start(prompt(40), pb.WHOLE, "long", max_tokens=3000))
        await small.event("tokens", "long")
        await hand_over(prefill, small, prompt(300))
        failed = (await small.event("failed")).failed
        assert failed.reason == pb.OVERLOADED
        small.send(start(prompt(40), pb.WHOLE, "waits"))
        small.send(start(prompt(40), pb.WHOLE, "refused"))
        assert (await small.event("failed", "refused")).failed.reason == pb.OVERLOADED
        prefill.cancel("r")
        small.cancel("long")
        small.cancel("waits")
        await small.empty()
        await small.stop()


async def test_draining_refuses_what_is_new_and_finishes_what_runs() -> None:
    node = await Node.start("decode")
    node.send(start(prompt(40), pb.WHOLE, max_tokens=60))
    await node.event("tokens")
    node.worker.begin_drain()
    node.send(start(prompt(40), pb.WHOLE, "late"))
    assert (await node.event("failed", "late")).failed.reason == pb.DRAINING
    await until(lambda: len(node.tokens()) == 60)
    await node.empty()
    await node.stop()


async def test_ten_cancelled_long_prefills_delay_a_short_request_by_at_most_one_chunk() -> None:
    node = await Node.start("prefill", make_engine(chunk_tokens=256, slots=400, max_sequences=12))
    for i in range(10):
        node.send(start(prompt(4000, seed=50 + i), pb.WHOLE, f"long{i}"))
    await node.event("started", "long0")
    for i in range(10):
        node.cancel(f"long{i}")
    steps: list[int] = []
    engine = await node.worker.engine.call(lambda engine: engine)
    schedule = engine.scheduler.schedule

    def counting():  # type: ignore[no-untyped-def]
        made = schedule()
        steps.append(sum(work.count for work in made.work))
        return made

    await node.worker.engine.call(lambda engine: setattr(engine.scheduler, "schedule", counting))
    node.send(start(prompt(20), pb.WHOLE, "short", max_tokens=1))
    await until(lambda: node.tokens(request="short"))
    assert sum(steps[: steps.index(20)]) <= 256
    await node.empty()
    await node.stop()


async def test_a_leased_cache_stays_until_its_lease_ends_even_if_the_first_token_is_the_last() -> None:
    """The event loop, which serves pulls, may be late: the engine must not give the memory away before it knows."""
    node = await Node.start("prefill", make_engine(slots=40, max_model_len=6000))
    node.send(start(prompt(3000), pb.PREFILL, max_tokens=1))
    await node.event("started")
    (lease,) = node.worker.leases._leases.values()
    engine = await node.worker.engine.call(lambda engine: engine)
    time.sleep(0.5)  # noqa: ASYNC251 - the loop is late on purpose
    assert engine.scheduler.parked or engine.scheduler.running
    assert node.worker.leases.held == 1
    slots = set(lease.slots[: lease.complete_blocks])
    referenced = {n.slot for n in engine.pool.tree.nodes.values() if n.refs}
    assert slots <= referenced, "what may be read is still the sequence's"
    await node.empty()
    await node.stop()


@pytest.mark.parametrize("seed", range(3))
async def test_starts_and_cancels_of_one_name_in_any_order_leave_nothing(seed: int) -> None:
    rng = random.Random(seed)
    async with pair() as (prefill, decode):
        for i in range(25):
            await hand_over(prefill, decode, prompt(rng.choice([5, 300, 1200]), seed=i), max_tokens=50, attempt=0)
            for node in rng.sample([prefill, decode], 2):
                if rng.random() < 0.8:
                    node.cancel("r", rng.choice([0, 1]))
            prefill.cancel("r", 5)
            decode.cancel("r", 5)
            prefill.events.clear()


async def test_two_routers_may_use_one_name() -> None:
    node = await Node.start("decode")
    other = await Node.join(node)
    node.send(start(prompt(40), pb.WHOLE, max_tokens=300))
    other.send(start(prompt(50, seed=2), pb.WHOLE, max_tokens=12))
    await until(lambda: len(other.tokens()) == 12)
    assert [other.tokens()[i] for i in range(12)] == offline(prompt(50, seed=2))[0]
    other.cancel("r")
    await until(lambda: len(node.tokens()) == 300)
    await other.leave()
    await node.empty()
    await node.stop()


async def test_a_decode_leg_without_a_source_is_refused() -> None:
    node = await Node.start("decode")
    node.send(start(prompt(5), pb.DECODE))
    failed = (await node.event("failed")).failed
    assert failed.reason == pb.INVALID
    assert "source" in failed.message
    await node.stop()


async def test_a_bug_is_logged_with_its_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    node = await Node.start("prefill")
    with monkeypatch.context() as broken:
        broken.setattr(node.worker.engine, "call", lambda _: 1 / 0)
        node.send(start(prompt(5), pb.PREFILL, "r7"))
        assert (await node.event("failed", "r7")).failed.reason == pb.INTERNAL
    [record] = [record for record in caplog.records if record.exc_info]
    assert (record.getMessage(), vars(record)["fields"]) == ("request r7, attempt 0", {"id": "r7", "attempt": 0})
    await node.empty()
    await node.stop()


async def test_channels_to_workers_that_are_gone_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channels, "_MAX_CHANNELS", 3)
    node = await Node.start("decode")
    for i in range(10):
        node.send(start(prompt(5), pb.DECODE, f"r{i}", source=pb.Source(address=f"127.0.0.1:{i + 1}", lease=1)))
        await node.event("failed", f"r{i}")
    assert len(node.worker.context.channels) <= 4
    await node.stop()


@pytest.mark.parametrize("phase", [pb.WHOLE, pb.PREFILL])
async def test_a_model_that_gives_no_numbers_fails_the_request(phase: pb.Phase) -> None:
    engine = make_engine()
    damage(engine)
    node = await Node.start("prefill", engine)
    node.send(start(prompt(300), phase))
    failed = (await node.event("failed")).failed
    assert failed.reason == pb.INTERNAL
    assert "NaN or infinite" in failed.message
    assert not node.tokens()
    await node.empty()
    await node.stop()


async def test_describe_tells_what_routers_need() -> None:
    node = await Node.start("prefill")
    info = await node.stub.Describe(pb.DescribeRequest())
    assert (info.role, info.fingerprint, info.vocab_size, info.max_model_len) == ("prefill", "same", 512, 8192)
    assert info.instance == node.worker.instance
    assert info.load.tails_total == node.worker.scheduler_config.max_sequences, "known before anything ran"
    memory, tails = node.worker.context.memory, info.load.tails_total + SchedulerConfig.scratch_tails
    assert memory.slabs.nbytes == info.load.slots_total * memory.geometry.slab_bytes
    assert memory.tails.nbytes == tails * memory.geometry.tail_bytes
    await node.stop()


async def test_a_taken_port_is_a_clear_error() -> None:
    from v4_core.errors import ConfigError
    from v4_worker.server import WorkerServer

    node = await Node.start("prefill")
    port = int(node.address.rpartition(":")[2])
    with pytest.raises(ConfigError, match="cannot listen"):
        await WorkerServer.start(node.worker, "127.0.0.1", port)
    await node.stop()


async def test_health_follows_readiness() -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    node = await Node.start("prefill")
    channel = grpc.aio.insecure_channel(node.address)
    stub = health_pb2_grpc.HealthStub(channel)
    request = health_pb2.HealthCheckRequest()
    assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
    await node.server.not_serving()
    assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
    await channel.close(None)
    await node.stop()
