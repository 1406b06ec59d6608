"""The metrics of a worker, `v4serve_*`, and of its process, in a registry of their own.

Steps, prompts, transfers and leases are counted when they happen. The engine's own counts and its state are read at
each scrape, from the last report of its thread. The metrics exist before the engine does: every family and every value
of its labels is present from the start, with the value 0.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Literal, get_args

from prometheus_client import Counter, Gauge, Histogram

from v4_core.metrics import SECONDS, TOKENS, process_registry
from v4_engine.counts import Counts
from v4_kvtransfer.leases import End
from v4_kvtransfer.puller import Pulled
from v4_worker.condition import Condition
from v4_worker.engine_collector import EngineCollector
from v4_worker.engine_thread import Kind, Report

Result = Literal["adopted", "failed", "cancelled", "refused"]

_TRANSPORT: Final = "grpc"


class WorkerMetrics:
    """All metrics of one worker process. Belongs to the event loop."""

    def __init__(self) -> None:
        self.condition = Condition()
        self.engine = EngineCollector(self.condition)
        self.registry = process_registry()
        self._add_steps()
        self._add_prompts()
        self._add_transfers()
        self._add_leases()
        self.registry.register(self.engine)

    def _add_steps(self) -> None:
        seconds = self._histogram(
            "engine_step_seconds", "Seconds of one step of the engine, by what it computed", SECONDS, "kind"
        )
        tokens = self._histogram(
            "engine_step_tokens", "Tokens computed in one step of the engine, by what it computed", TOKENS, "kind"
        )
        kinds: tuple[Kind, ...] = get_args(Kind)
        self._steps = {kind: (seconds.labels(kind), tokens.labels(kind)) for kind in kinds}

    def _add_prompts(self) -> None:
        self.prompt_queue = self._histogram(
            "prompt_queue_seconds", "Seconds from the arrival of a prompt at this worker until it is admitted", SECONDS
        )
        self.prompt_prefill = self._histogram(
            "prompt_prefill_seconds", "Seconds from the admission of a prompt until its first token", SECONDS
        )

    def _add_transfers(self) -> None:
        transfers = self._counter(
            "transfers",
            "Caches that a decode worker was asked to take over, by result; refused: it had no memory for the cache",
            "transport",
            "result",
        )
        results: tuple[Result, ...] = get_args(Result)
        self._transfers = {result: transfers.labels(_TRANSPORT, result) for result in results}
        sent = self._counter("transfer_bytes", "Bytes transferred for caches that were adopted", "transport")
        self._transfer_bytes = sent.labels(_TRANSPORT)
        seconds = self._histogram(
            "transfer_seconds",
            "Seconds of the transfer of an adopted cache, without the time in which prefill had nothing to send",
            SECONDS,
            "transport",
        )
        self._transfer_seconds = seconds.labels(_TRANSPORT)
        self._transfer_wait = self._histogram(
            "transfer_wait_seconds",
            "Seconds of the transfer of an adopted cache in which prefill had nothing to send",
            SECONDS,
        )
        self._in_flight = Gauge(
            "v4serve_transfers_in_flight", "Transfers to this worker that are running", registry=self.registry
        )
        self._saved_bytes = self._counter(
            "transfer_saved_bytes",
            "Bytes of adopted caches that were not transferred, because the worker had the blocks",
        )

    def _add_leases(self) -> None:
        ends = self._counter(
            "leases",
            "Leases that ended; released: a decode worker has the cache, unneeded: all choices finished with their "
            "first token, expired: no decode worker pulled it, dropped: its request failed or was cancelled",
            "end",
        )
        self._lease_ends: dict[End, Counter] = {end: ends.labels(end) for end in get_args(End)}
        self.leases_held = Gauge(
            "v4serve_leases_held", "Finished prompts whose cache waits for a decode worker", registry=self.registry
        )
        self._lease_seconds = self._histogram(
            "lease_seconds", "Seconds for which the cache of a finished prompt was held for a decode worker", SECONDS
        )
        self.leased_bytes_sent = self._counter(
            "leased_bytes_sent", "Bytes of leased caches sent to decode workers, including failed transfers"
        )

    def watch(self, counts: Counts, report: Report) -> None:
        """Connect the engine: its counts and its first report."""
        self.engine.counts, self.engine.report = counts, report

    def reported(self, report: Report) -> None:
        """Record a report of the engine's thread."""
        self.engine.report = report
        if report.step is not None:
            seconds, tokens = self._steps[report.step.kind]
            seconds.observe(report.step.seconds)
            tokens.observe(report.step.prefill_tokens + report.step.decode_tokens)

    @contextmanager
    def transferring(self) -> Iterator[None]:
        """Count a transfer: adopted if the context ends without an error, otherwise cancelled or failed."""
        result: Result = "failed"
        self._in_flight.inc()
        try:
            yield
            result = "adopted"
        except asyncio.CancelledError:
            result = "cancelled"
            raise
        finally:
            self._in_flight.dec()
            self._transfers[result].inc()

    def adopted(self, pulled: Pulled, saved_bytes: int) -> None:
        """Record the transfer of an adopted cache, of which the worker already had `saved_bytes`."""
        self._transfer_bytes.inc(pulled.bytes)
        self._transfer_seconds.observe(pulled.seconds - pulled.wait_seconds)
        self._transfer_wait.observe(pulled.wait_seconds)
        self._saved_bytes.inc(saved_bytes)

    def refused(self) -> None:
        """Count a cache for which there was no memory."""
        self._transfers["refused"].inc()

    def lease_ended(self, end: End, seconds: float | None) -> None:
        """Record the end of a lease. `seconds` is the time since prefill finished, None if it never finished."""
        self._lease_ends[end].inc()
        if seconds is not None:
            self._lease_seconds.observe(seconds)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(f"v4serve_{name}", text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
        return Histogram(f"v4serve_{name}", text, labels, buckets=buckets, registry=self.registry)
