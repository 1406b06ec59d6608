"""What a worker's metrics cost: `python -m bench.worker_metrics [--json]`.

One worker decodes one sequence of the shipped model. 20 steps with metrics alternate with 20 steps without, in one
process; the yardstick is the time from one step to the next without metrics. On a busy machine the difference is
smaller than the noise, so the CPU time of the counting alone and the time to answer a scrape are measured too.
"""

import argparse
import asyncio
import json
import statistics
import time
from contextlib import suppress
from dataclasses import asdict, dataclass

import torch
from prometheus_client import generate_latest

from v4_core.blocks import pack_ids
from v4_core.sampling import Sampling
from v4_core.settings import load
from v4_core.v1 import worker_pb2 as pb
from v4_engine.engine import Engine
from v4_engine.events import Event
from v4_engine.loading import Loaded, load_engine
from v4_engine.options import EngineOptions
from v4_engine.schedule import Schedule
from v4_models import DEMO_MODEL
from v4_worker.config import WorkerConfig
from v4_worker.engine_thread import EngineThread, Report, StepResult, report_of
from v4_worker.leg import WholeLeg
from v4_worker.metrics import WorkerMetrics
from v4_worker.stream import RouterStream
from v4_worker.worker import Worker

TURN = 20  # steps
PROMPT, TOKENS = 1000, 3000
THREADS = 2
TARGET = 0.02


@dataclass(frozen=True)
class Result:
    """Medians, in seconds."""

    step_with: float
    step_without: float
    counting: float  # CPU time for one step, measured alone, fastest of several repeats
    scrape: float
    scrape_bytes: int

    @property
    def share(self) -> float:
        """Share of a step's time."""
        return self.step_with / self.step_without - 1


class Alternating:
    """Switches the metrics of steps on and off, and records the time from one step to the next."""

    def __init__(self, engine: Engine) -> None:
        self.intervals: dict[bool, list[float]] = {True: [], False: []}
        self._engine, self._compute = engine, engine.compute
        self._count, self._began = 0, 0.0

    def attach(self, thread: EngineThread) -> None:
        """Make the engine thread alternate from its next step on."""
        measured = thread._step

        def step() -> None:
            if self.on:
                measured()
            else:
                thread._post(thread._on_report, plain(self._engine))

        thread._step = step  # type: ignore[method-assign]
        self._engine.compute = self.compute  # type: ignore[method-assign]

    @property
    def on(self) -> bool:
        """Whether the next step is measured."""
        return self._count // TURN % 2 == 0

    def compute(self, schedule: Schedule) -> list[Event]:
        """Run the engine's `compute` and record the time since the last call, except right after a switch."""
        now = time.perf_counter()
        if self._count % TURN > 1 and schedule.decode_tokens:
            self.intervals[self.on].append(now - self._began)
        self._began = now
        self._count += 1
        return self._compute(schedule)


def plain(engine: Engine) -> Report:
    """Run a step without metrics."""
    return report_of(engine, engine.step())


def counting(metrics: WorkerMetrics, rounds: int = 2000) -> float:
    """Return the CPU seconds that engine thread and event loop spend on the metrics of a decode step."""
    found, load = [], metrics.engine.report.load
    for _ in range(5):
        before = time.thread_time()
        for _ in range(rounds):
            began = time.monotonic()
            step = StepResult(0, 1, time.monotonic() - began)
            metrics.reported(Report([], load, 0, 0, step, time.monotonic()))
        found.append((time.thread_time() - before) / rounds)
    return min(found)


async def decode(loaded: Loaded, metrics: WorkerMetrics) -> Alternating:
    """Decode one sequence with one worker."""
    alternating, failed = Alternating(loaded.engine), list[BaseException]()
    worker = Worker(WorkerConfig(DEMO_MODEL), "decode", loaded, {pb.WHOLE: WholeLeg}, metrics, failed.append)
    await worker.engine.call(lambda engine: alternating.attach(worker.engine))
    stream = RouterStream()
    worker.streams.add(stream)
    worker.start(_request(loaded.engine.config.vocab_size), stream)
    while worker.legs and not failed:
        with suppress(TimeoutError):
            await asyncio.wait_for(stream.next(), 1)
    await worker.close()
    if failed:
        raise failed[0]
    return alternating


def _request(vocab: int) -> pb.Start:
    ids = torch.randint(2, vocab, (PROMPT,), generator=torch.Generator().manual_seed(0)).tolist()
    return pb.Start(
        request="r",
        phase=pb.WHOLE,
        prompt_ids=pack_ids(ids),
        n=1,
        max_tokens=TOKENS,
        ignore_eos=True,
        sampling=Sampling(temperature=0).to_proto(),
    )


def measure() -> Result:
    """Measure decoding, counting alone, and scraping."""
    loaded = load_engine(DEMO_MODEL, load(EngineOptions, None, {"device": "cpu", "max_model_len": PROMPT + TOKENS + 1}))
    metrics = WorkerMetrics()
    intervals = asyncio.run(decode(loaded, metrics)).intervals
    on, off = (statistics.median(intervals[turn]) for turn in (True, False))
    scrapes = []
    for _ in range(50):
        began = time.perf_counter()
        text = generate_latest(metrics.registry)
        scrapes.append(time.perf_counter() - began)
    return Result(on, off, counting(metrics), statistics.median(scrapes), len(text))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    torch.set_num_threads(THREADS)
    result = measure()
    if as_json:
        print(json.dumps({**asdict(result), "share": result.share}))
        return
    took = f"{1e6 * result.step_with:.0f} µs with metrics, {1e6 * result.step_without:.0f} µs without"
    print(f"a decode step at batch 1 takes {took}: {result.share:+.2%} (target: < {TARGET:.0%})")
    counted = result.counting / result.step_without
    print(f"counting alone takes {1e6 * result.counting:.1f} µs of CPU: {counted:.2%}")
    print(f"a scrape takes {1e3 * result.scrape:.1f} ms and answers {result.scrape_bytes} bytes")


if __name__ == "__main__":
    main()
