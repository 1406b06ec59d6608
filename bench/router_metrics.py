"""What the router's metrics and its log line per request cost: `python -m bench.router_metrics [--json]`.

The figures are the CPU time of the router's counting, observing and logging for a request of one token, and for each
further token. The yardstick is the CPU time of the router for the same, which `bench.router` measures right afterwards.
"""

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from types import SimpleNamespace
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from v4_router import request_log
from v4_router.exchange import Exchange
from v4_router.metrics import Metrics
from v4_router.output import Delta
from v4_router.pace import Pace
from v4_router.placement import Placement
from v4_router.timing import PromptTiming, Timing

ROUNDS, TOKENS = 2000, 32
TARGET = 0.02
PLACEMENT = Placement("a:1", "b:1", "prefix", queued_tokens=100, cached_tokens=256, elsewhere_tokens=256)


@dataclass(frozen=True)
class Share:
    """CPU time of one kind of work, in seconds, and that of the router."""

    what: str
    metrics_seconds: float
    router_seconds: float

    @property
    def share(self) -> float:
        """Share of the router's CPU time."""
        return self.metrics_seconds / self.router_seconds


class Requests:
    """Does the router's work for its metrics, and nothing else."""

    def __init__(self) -> None:
        self.metrics = Metrics()
        self.pace = Pace()
        flow = SimpleNamespace(job=SimpleNamespace(prompt=bytes(4000)), cached_tokens=0, pair=("a:1", "b:1"), retries=0)
        output = SimpleNamespace(tokens=TOKENS, finish="length")
        self.exchange = cast(Exchange, SimpleNamespace(flows=[flow], outputs=[output]))
        self.delta = Delta(0, "", "", [7])

    def count(self, tokens: int) -> Timing:
        """Update the metrics for a request of `tokens` tokens that arrive in one message each."""
        metrics, timing = self.metrics, Timing(self.metrics, time.perf_counter)
        prompt = PromptTiming(timing, 1000)
        prompt.placed("prefix", PLACEMENT)
        awaited = prompt.sent(PLACEMENT, 1000, self.pace)
        prompt.began(256)
        prompt.first_token(awaited)
        for _ in range(tokens):
            timing.add([self.delta])
        metrics.request_prompt_tokens.observe(1000)
        metrics.request_generated_tokens.observe(tokens)
        timing.end()
        metrics.requests.labels("completions", "ok").inc()
        return timing

    def log(self, timing: Timing) -> None:
        """Write the log line of a request."""
        ended = request_log.Ended("0" * 32, f"cmpl-{'0' * 32}", "completions", "ok", "")
        request_log.write(ended, timing.breakdown(), self.exchange)


def least(work: Callable[[], Any], repeats: int = 5) -> float:
    """Return the CPU seconds of one call of `work`, from the fastest of several repeats."""
    found = []
    for _ in range(repeats):
        before = time.thread_time()
        for _ in range(ROUNDS):
            work()
        found.append((time.thread_time() - before) / ROUNDS)
    return min(found)


def measure() -> list[Share]:
    """Measure a request of one token, its log line, each further token, and a longer request."""
    requests = Requests()
    with open("/dev/null", "w", encoding="utf-8") as nowhere:
        logging.basicConfig(level=logging.INFO, stream=nowhere, format="%(levelname)s %(name)s: %(message)s")
        one, many = least(lambda: requests.count(1)), least(lambda: requests.count(TOKENS))
        timing = requests.count(TOKENS)
        line = least(lambda: requests.log(timing))
    done = subprocess.run([sys.executable, "-m", "bench.router", "--json"], check=True, capture_output=True, text=True)
    loads = {load["name"]: 1 / load["requests_per_core_second"] for load in json.loads(done.stdout)["loads"]}
    short, long = loads["1,000 ids, 1 token"], loads[f"1,000 ids, {TOKENS} tokens"]
    return [
        Share("metrics of a request of 1,000 ids and 1 token", one, short),
        Share("log line of a request", line, short),
        Share("metrics of each further token", (many - one) / (TOKENS - 1), (long - short) / (TOKENS - 1)),
        Share(f"all of a request of 1,000 ids and {TOKENS} tokens", many + line, long),
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    shares = measure()
    if as_json:
        print(json.dumps([{**asdict(one), "share": one.share} for one in shares]))
        return
    table = Table("", "µs", "of µs of the router", "share", title=f"Metrics of the router (target: < {TARGET:.0%})")
    for one in shares:
        table.add_row(
            one.what, f"{one.metrics_seconds * 1e6:.1f}", f"{one.router_seconds * 1e6:.0f}", f"{one.share:.1%}"
        )
    Console().print(table)


if __name__ == "__main__":
    main()
