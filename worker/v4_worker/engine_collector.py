"""Exposes the engine's counts and state as metrics, built at each scrape. Does not call the engine.

The counts are the engine's own and only grow. The state comes from the last report of the engine's thread, which
describes a single moment, so the values of one scrape add up.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from v4_core.v1 import worker_pb2 as pb
from v4_engine.counts import Counts
from v4_worker.condition import STATES, Condition
from v4_worker.engine_thread import Report

_EVICTIONS: Final = "Blocks and checkpoints that were evicted, by the reason why memory was needed"
_PREFIX_TOKENS: Final = (
    "Prompt tokens at admission; hit: not computed again, replayed: cached but computed again to restore the state "
    "after them, no_checkpoint: cached but after the last checkpoint, evicted: recently evicted, no_blocks: the rest"
)
_SEQUENCES: Final = "Sequences by state; the choices of one prompt count as one until the prompt is computed"
_SLOTS: Final = (
    "Block slots by content; used: blocks of sequences, cached: blocks that no sequence uses; cached blocks and "
    "checkpoints are evicted when memory is needed"
)
_RATIO: Final = "Share of block slots that sequences use, which eviction cannot free"


class EngineCollector(Collector):
    """Collects the worker's state, the engine's counts and the last report of its thread."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        self.counts = Counts()  # replaced by the engine's once there is one
        self.report = Report([], pb.Load())

    def collect(self) -> Iterator[Metric]:
        """Yields all families with every value of their labels."""
        state = self._condition.state
        yield _by_state("worker_state", "1 for the state that the worker is in", {s: s == state for s in STATES})
        yield from self._sequences()
        yield from self._memory()
        yield from self._counted()

    def _sequences(self) -> Iterator[Metric]:
        report, load = self.report, self.report.load
        running = load.running - report.arriving
        sequences = {"waiting": load.waiting, "arriving": report.arriving, "running": running, "parked": report.parked}
        yield _by_state("sequences", _SEQUENCES, sequences)
        yield _gauge("queued_tokens", "Prompt tokens on this worker that are not computed yet", load.queued_tokens)

    def _memory(self) -> Iterator[Metric]:
        load = self.report.load
        checkpoint, used = load.checkpoint_slots_used, load.blocks_used
        cached = load.slots_evictable - checkpoint
        slots = {"free": load.slots_free, "cached": cached, "used": used, "checkpoint": checkpoint}
        yield _by_state("block_slots", _SLOTS, slots)
        ratio = used / max(1, load.slots_total)
        yield _gauge("block_slots_used_ratio", _RATIO, ratio)
        tails = {"free": load.tails_total - load.tails_used, "used": load.tails_used}
        yield _by_state("live_tails", "Live tails; each running, arriving or leased sequence uses one", tails)

    def _counted(self) -> Iterator[Metric]:
        counts = self.counts
        yield _counter("prefill_tokens", "Prompt tokens computed, including after preemption", counts.prefill_tokens)
        yield _counter("decode_tokens", "Tokens sampled, including first tokens of prompts", counts.drawn_tokens)
        yield _counter("preemptions", "Sequences that lost their memory and were queued again", counts.preemptions)
        evictions = CounterMetricFamily("v4serve_evictions", _EVICTIONS, labels=("what", "reason"))
        for key, count in counts.evictions.items():
            evictions.add_metric(key, count)
        yield evictions
        prefix = CounterMetricFamily("v4serve_prefix_tokens", _PREFIX_TOKENS, labels=("result",))
        for result, tokens in counts.prefix_tokens.items():
            prefix.add_metric((result,), tokens)
        yield prefix


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"v4serve_{name}", text, value)


def _counter(name: str, text: str, value: int) -> Metric:
    return CounterMetricFamily(f"v4serve_{name}", text, value)


def _by_state(name: str, text: str, values: Mapping[str, float]) -> Metric:
    family = GaugeMetricFamily(f"v4serve_{name}", text, labels=("state",))
    for state, value in values.items():
        family.add_metric((state,), value)
    return family
