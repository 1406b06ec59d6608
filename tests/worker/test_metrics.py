"""What a worker's /metrics say, scraped over HTTP from real workers, beside what was done with them."""

import itertools
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.harness import make_engine, prompt
from tests.worker.cluster import DEADLINE, Node, start, until
from v4_core.v1 import worker_pb2 as pb
from v4_engine.engine import Engine
from v4_engine.events import Event
from v4_engine.schedule import Schedule
from v4_worker.metrics import WorkerMetrics
from v4_worker.monitoring import monitoring

GRPC = 'transport="grpc"'
FAMILIES = {
    "worker_state": {"state"},
    "engine_step_seconds": {"kind"},
    "engine_step_tokens": {"kind"},
    "prefill_tokens": set(),
    "decode_tokens": set(),
    "sequences": {"state"},
    "queued_tokens": set(),
    "block_slots": {"state"},
    "block_slots_used_ratio": set(),
    "live_tails": {"state"},
    "evictions": {"what", "reason"},
    "preemptions": set(),
    "prefix_tokens": {"result"},
    "prompt_queue_seconds": set(),
    "prompt_prefill_seconds": set(),
    "transfers": {"transport", "result"},
    "transfer_bytes": {"transport"},
    "transfer_seconds": {"transport"},
    "transfer_wait_seconds": set(),
    "transfers_in_flight": set(),
    "transfer_saved_bytes": set(),
    "leases_held": set(),
    "leases": {"end"},
    "lease_seconds": set(),
    "leased_bytes_sent": set(),
    "process_info": {"version"},
}

Samples = dict[str, float]  # by name without v4serve_, and labels: 'sequences{state="waiting"}'


class Scraped(Node):
    """A worker with a monitoring port."""

    url: str

    async def scrape(self) -> Samples:
        """All v4serve_* samples now."""
        async with aiohttp.ClientSession() as session, session.get(f"http://{self.url}/metrics") as response:
            text = await response.text()
        samples = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                labels = ",".join(f'{key}="{value}"' for key, value in sorted(sample.labels.items()))
                samples[sample.name.removeprefix("v4serve_") + (labels and f"{{{labels}}}")] = sample.value
        return samples

    async def until_scraped(self, condition: Callable[[Samples], bool]) -> Samples:
        """The samples of the first scrape for which this holds."""
        end = time.monotonic() + DEADLINE
        while not condition(samples := await self.scrape()):
            assert time.monotonic() < end, samples
        return samples


@asynccontextmanager
async def scraped(role: str, engine: Engine | None = None) -> AsyncIterator[Scraped]:
    """A worker, empty at the end; leases outlast the test."""
    node = await Scraped.start(role, engine, lease_seconds=600.0)
    assert isinstance(node, Scraped)
    try:
        async with monitoring(node.worker.metrics, "127.0.0.1", 0) as node.url:
            yield node
            await node.empty()
    finally:
        await node.stop()


@contextmanager
def paused(engine: Engine, steps: int) -> Iterator[threading.Event]:
    """The engine computes so many steps, and the next one only when the event is set, or at the end."""
    compute, taken, go_on = engine.compute, itertools.count(), threading.Event()

    def wait(schedule: Schedule) -> list[Event]:
        if next(taken) >= steps:
            go_on.wait()
        return compute(schedule)

    engine.compute = wait  # type: ignore[method-assign]
    try:
        yield go_on
    finally:
        go_on.set()


async def hand_over(prefill: Node, decode: Node, ids: list[int], name: str = "r", tokens: int = 12) -> pb.Source:
    """Start both legs as the router does."""
    prefill.send(start(ids, pb.PREFILL, name, max_tokens=tokens))
    source = pb.Source(address=prefill.address, lease=(await prefill.event("started", name)).started.lease)
    decode.send(start(ids, pb.DECODE, name, source=source, max_tokens=tokens))
    return source


def by(samples: Samples, name: str) -> dict[str, float]:
    """Samples of a family with one label beside the transport, by its value; those that are 0 left out."""
    found = {key: value for key, value in samples.items() if key.partition("{")[0] == name and value}
    return {re.sub(r',?transport=".*"', "", key).split('"')[1]: value for key, value in found.items()}


def test_the_families_and_their_labels_are_known_without_an_engine() -> None:
    labels: dict[str, set[str]] = {}
    for family in WorkerMetrics().registry.collect():
        if family.name.startswith("v4serve_"):
            assert family.documentation
            assert family.samples, "each value of each label is there from the start"
            labels[family.name.removeprefix("v4serve_")] = {key for s in family.samples for key in s.labels} - {"le"}
    # the parts of an Info's name are joined only in the text
    labels["process_info"] = labels.pop("process")
    assert labels == FAMILIES


async def test_a_worker_that_has_done_nothing() -> None:
    async with scraped("prefill", make_engine(slots=40)) as node:
        samples = await node.scrape()
        assert by(samples, "block_slots") == {"free": 40}
        assert by(samples, "live_tails") == {"free": 6}
        changing = {k: v for k, v in samples.items() if v and k.partition("{")[0].removesuffix("_total") in FAMILIES}
        assert set(changing) == {
            'block_slots{state="free"}',
            'live_tails{state="free"}',
            'worker_state{state="loading"}',
            *(key for key in samples if key.startswith("process_info")),
        }


async def test_before_during_and_after_a_transfer() -> None:
    tokens, engine = 2600, make_engine(chunk_tokens=16)
    async with scraped("prefill", engine) as prefill, scraped("decode") as decode:
        with paused(engine, steps=40) as go_on:
            await hand_over(prefill, decode, prompt(tokens))
            left = tokens - 40 * 16
            await prefill.until_scraped(lambda samples: samples["queued_tokens"] == left)
            here = await prefill.until_scraped(lambda samples: samples["leased_bytes_sent_total"] > 0)
            assert here["leases_held"] == 0, "the prompt is not finished"
            assert prefill.worker.leases.held == 1
            assert by(here, "sequences") == {"running": 1}
            assert here["queued_tokens"] == tokens - here["prefill_tokens_total"] == left
            assert sum(by(here, "block_slots").values()) == 64
            assert here["block_slots_used_ratio"] == by(here, "block_slots")["used"] / 64

            there = await decode.until_scraped(lambda samples: by(samples, "sequences") == {"arriving": 1})
            assert there["transfers_in_flight"] == 1
            assert by(there, "live_tails") == {"free": 5, "used": 1}
            assert by(there, "transfers_total") == {}
            go_on.set()

        await until(lambda: len(decode.tokens()) == 11)
        adopted = (await decode.event("adopted")).adopted
        here = await prefill.until_scraped(lambda samples: samples["leases_held"] == 0 and not by(samples, "sequences"))
        there = await decode.until_scraped(lambda samples: not by(samples, "sequences"))
        size = decode.worker.context.memory.geometry.sequence_bytes(tokens)
        assert here["leased_bytes_sent_total"] == there[f"transfer_bytes_total{{{GRPC}}}"] == size
        assert by(here, "leases_total") == {"released": 1}
        assert here["lease_seconds_count"] == there[f"transfer_seconds_count{{{GRPC}}}"] == 1
        assert here["lease_seconds_sum"] > 0
        assert there["transfer_wait_seconds_count"] == 1
        assert there["transfer_wait_seconds_sum"] == adopted.wait_seconds > 0
        moved = there[f"transfer_seconds_sum{{{GRPC}}}"]
        assert moved == pytest.approx(adopted.seconds - adopted.wait_seconds)
        assert moved > 0
        assert by(there, "transfers_total") == {"adopted": 1}
        assert there["transfers_in_flight"] == there["transfer_saved_bytes_total"] == 0

        assert by(here, "prefix_tokens_total") == {"no_blocks": tokens}
        assert here["prefill_tokens_total"] == tokens
        assert by(here, "engine_step_tokens_sum") == {"prefill": tokens}
        assert by(here, "engine_step_tokens_count") == {"prefill": -(-tokens // 16)}
        assert by(here, "engine_step_seconds_count") == {"prefill": -(-tokens // 16)}
        assert here["prompt_queue_seconds_count"] == here["prompt_prefill_seconds_count"] == 1
        steps = here['engine_step_seconds_sum{kind="prefill"}']
        assert here["prompt_queue_seconds_sum"] < steps * 0.9 < here["prompt_prefill_seconds_sum"]
        assert (here["decode_tokens_total"], there["decode_tokens_total"]) == (1, 11)
        assert by(there, "engine_step_tokens_sum") == {"decode": 11}
        assert there["prefill_tokens_total"] == there["prompt_queue_seconds_count"] == 0


async def test_what_gives_way_is_not_in_use() -> None:
    async with scraped("prefill") as prefill, scraped("decode") as decode:
        await hand_over(prefill, decode, prompt(700))
        await until(lambda: len(decode.tokens()) == 11)
        samples = await prefill.until_scraped(lambda samples: not by(samples, "sequences"))
        assert by(samples, "block_slots").keys() == {"free", "cached", "checkpoint"}
        assert samples["block_slots_used_ratio"] == 0


async def test_what_is_here_already_is_saved() -> None:
    async with scraped("prefill") as prefill, scraped("decode") as decode:
        for name in ("a", "b"):
            await hand_over(prefill, decode, prompt(700), name)
            await until(lambda name=name: len(decode.tokens(request=name)) == 11)  # type: ignore[misc]
        samples = await decode.scrape()
        full = 2 * decode.worker.context.memory.geometry.sequence_bytes(700)
        saved = samples["transfer_saved_bytes_total"]
        assert 0 < saved == full - samples[f"transfer_bytes_total{{{GRPC}}}"]
        assert by(samples, "transfers_total") == {"adopted": 2}
        assert by(await prefill.scrape(), "prefix_tokens_total") == {"hit": 512, "no_blocks": 700 + 188}


async def test_a_transfer_that_is_cancelled_and_a_lease_that_is_dropped() -> None:
    engine = make_engine(chunk_tokens=16)
    async with scraped("prefill", engine) as prefill, scraped("decode") as decode:
        with paused(engine, steps=40):
            await hand_over(prefill, decode, prompt(2600))
            await decode.until_scraped(lambda samples: samples["transfers_in_flight"] == 1)
            decode.cancel("r")
            there = await decode.until_scraped(lambda samples: bool(by(samples, "transfers_total")))
            assert by(there, "transfers_total") == {"cancelled": 1}
            assert there["transfers_in_flight"] == there[f"transfer_bytes_total{{{GRPC}}}"] == 0
            prefill.cancel("r")
            here = await prefill.until_scraped(lambda samples: bool(by(samples, "leases_total")))
            assert by(here, "leases_total") == {"dropped": 1}
            assert here["lease_seconds_count"] == here["prompt_prefill_seconds_count"] == 0


async def test_a_lease_that_no_decode_worker_needs() -> None:
    async with scraped("prefill") as prefill:
        prefill.send(start(prompt(300), pb.PREFILL, max_tokens=1))
        await prefill.event("tokens")
        here = await prefill.until_scraped(lambda samples: bool(by(samples, "leases_total")))
        assert by(here, "leases_total") == {"unneeded": 1}
        assert here["leases_held"] == here["lease_seconds_count"] == 0


async def test_a_transfer_that_fails_and_a_lease_that_expires() -> None:
    async with scraped("prefill") as prefill, scraped("decode") as decode:
        prefill.send(start(prompt(300), pb.PREFILL))
        await prefill.event("tokens")
        here = await prefill.until_scraped(lambda samples: by(samples, "sequences") == {"parked": 1})
        assert (here["leases_held"], here["lease_seconds_count"]) == (1, 0)
        prefill.worker.leases._ttl = 0.0
        prefill.worker.leases.expire()
        here = await prefill.scrape()
        assert by(here, "leases_total") == {"expired": 1}
        assert (here["leases_held"], here["lease_seconds_count"]) == (0, 1)
        source = pb.Source(address=prefill.address, lease=1)
        decode.send(start(prompt(300), pb.DECODE, source=source))
        await decode.event("failed")
        assert by(await decode.scrape(), "transfers_total") == {"failed": 1}


async def test_what_waits_and_what_is_refused() -> None:
    async with scraped("prefill") as prefill, scraped("decode", make_engine(max_sequences=1)) as decode:
        decode.send(start(prompt(40), pb.WHOLE, "long", max_tokens=3000))
        await decode.event("tokens", "long")
        decode.send(start(prompt(50, seed=2), pb.WHOLE, "waits"))
        samples = await decode.until_scraped(lambda samples: "waiting" in by(samples, "sequences"))
        assert by(samples, "sequences") == {"running": 1, "waiting": 1}
        assert samples["queued_tokens"] == 50
        await hand_over(prefill, decode, prompt(300))
        await decode.event("failed")
        assert by(await decode.scrape(), "transfers_total") == {"refused": 1}
        assert (await decode.scrape())["prompt_queue_seconds_count"] == 1
        before = time.monotonic()
        decode.cancel("long")
        await until(lambda: len(decode.tokens(request="waits")) == 12)
        samples = await decode.scrape()
        assert samples["prompt_queue_seconds_count"] == samples["prompt_prefill_seconds_count"] == 2
        assert samples["prompt_prefill_seconds_sum"] < time.monotonic() - before + DEADLINE
        prefill.cancel("r")


async def test_evictions_by_what_went_and_for_whom() -> None:
    engine = make_engine(slots=14, max_model_len=2048)
    async with scraped("prefill") as prefill, scraped("decode", engine) as decode:
        for i in range(3):
            decode.send(start(prompt(1500, seed=i), pb.WHOLE, f"r{i}", max_tokens=1))
            await until(lambda i=i: decode.tokens(request=f"r{i}"))  # type: ignore[misc]
        samples = await decode.scrape()
        assert _evicted(samples, "prompt") > 0
        assert _evicted(samples, "checkpoint") > 0
        assert _evicted(samples, "transfer") == 0
        assert sum(by(samples, "block_slots").values()) == 14
        assert by(samples, "block_slots")["cached"] > 0
        assert by(samples, "block_slots")["checkpoint"] > 0
        decode.send(start(prompt(1500, seed=0), pb.WHOLE, "again", max_tokens=1))
        await until(lambda: decode.tokens(request="again"))
        assert by(await decode.scrape(), "prefix_tokens_total") == {"no_blocks": 3 * 1500 + 220, "evicted": 1280}
        await hand_over(prefill, decode, prompt(1000, seed=9))
        await decode.event("adopted")
        assert _evicted(await decode.scrape(), "transfer") > 0


async def test_growth_preempts_and_steps_mix() -> None:
    async with scraped("decode", make_engine(slots=9, max_model_len=1536, chunk_tokens=64)) as node:
        for i in range(2):
            node.send(start(prompt(500 + 10 * i, seed=20 + i), pb.WHOLE, f"r{i}", max_tokens=400))
        await until(lambda: all(len(node.tokens(request=f"r{i}")) == 400 for i in range(2)))
        samples = await node.until_scraped(lambda samples: not by(samples, "sequences"))
        counts = await node.worker.engine.call(lambda engine: engine.counts)
        assert samples["preemptions_total"] == counts.preemptions > 0
        assert _evicted(samples, "decode") > 0
        assert set(by(samples, "engine_step_seconds_count")) == {"prefill", "decode", "mixed"}
        assert samples["decode_tokens_total"] == 800
        assert samples["prefill_tokens_total"] > 1010
        assert sum(by(samples, "prefix_tokens_total").values()) == 1010
        computed = samples["prefill_tokens_total"] + samples["decode_tokens_total"]
        assert sum(by(samples, "engine_step_tokens_sum").values()) < computed, "first tokens come of prompts' steps"


def _evicted(samples: Samples, reason: str) -> float:
    """Blocks and checkpoints."""
    whats = ("block", "checkpoint")
    return sum(samples[f'evictions_total{{reason="{reason}",what="{what}"}}'] for what in whats)
