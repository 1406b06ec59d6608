"""What a worker's engine counts and holds, as families of metrics made when scraped. Asks no engine.

The counts are the engine's own, which only grow. What it holds is what its thread said last, of one moment, so that the
values of one scrape add up.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from v4_core.v1 import worker_pb2 as pb
from v4_engine.counts import Counts
from v4_worker.condition import STATES, Condition
from v4_worker.engine_thread import Report

_EVICTIONS: Final = "Blocks and checkpoints that were given up, by for whom room was made"
_PREFIX_TOKENS: Final = (
    "Tokens of prompts at admission; hit: not computed again, replayed: here and run again to have the state behind "
    "them, no_checkpoint: here but behind the last checkpoint, evicted: here until lately, no_blocks: the rest"
)
_SEQUENCES: Final = "Sequences by state; the choices of one prompt are one until it is computed"
_SLOTS: Final = (
    "Block slots by what they hold; used: blocks of sequences, cached: blocks that nobody uses now; cached ones and "
    "checkpoints give way where room is needed"
)
_RATIO: Final = "Block slots that sequences use, of all: what eviction cannot free"


class EngineCollector(Collector):
    """Reads the state of the worker, the engine's counts and its thread's last report."""

    def __init__(self, condition: Condition) -> None:
        self._condition = condition
        self.counts = Counts()  # the engine's, once there is one
        self.report = Report([], pb.Load())

    def collect(self) -> Iterator[Metric]:
        """All families, with every value of their labels."""
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
        yield _gauge("queued_tokens", "Tokens of prompts here that are still to be computed", load.queued_tokens)

    def _memory(self) -> Iterator[Metric]:
        load = self.report.load
        checkpoint, used = load.checkpoint_slots_used, load.blocks_used
        cached = load.slots_evictable - checkpoint
        slots = {"free": load.slots_free, "cached": cached, "used": used, "checkpoint": checkpoint}
        yield _by_state("block_slots", _SLOTS, slots)
        ratio = used / max(1, load.slots_total)
        yield _gauge("block_slots_used_ratio", _RATIO, ratio)
        tails = {"free": load.tails_total - load.tails_used, "used": load.tails_used}
        yield _by_state("live_tails", "Live tails: one for each sequence that runs, arrives or is leased", tails)

    def _counted(self) -> Iterator[Metric]:
        counts = self.counts
        yield _counter("prefill_tokens", "Tokens of prompts computed, or again after preemption", counts.prefill_tokens)
        yield _counter("decode_tokens", "Tokens drawn, first tokens of prompts too", counts.drawn_tokens)
        yield _counter("preemptions", "Sequences that gave their memory up and began again", counts.preemptions)
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
