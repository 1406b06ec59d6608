"""What tracing costs the router: `python -m bench.tracing [--json]`.

The figures are medians of the router's CPU time per request, which `bench.router` measures alternately with every
request traced and exported to a real OTLP receiver, and without tracing. Spans of workers are not included.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table
from tests.otlp import receiver

TURNS = 5
KINDS = ("1,000 ids, 1 token", "1,000 ids, 32 tokens")


@dataclass(frozen=True)
class Cost:
    """CPU seconds of the router per request."""

    what: str
    traced: float
    untraced: float


def router_seconds(environment: Mapping[str, str]) -> dict[str, float]:
    """Return the router's CPU seconds by kind of request, from one run of bench.router."""
    command = [sys.executable, "-m", "bench.router", "--json"]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    loads = {load["name"]: 1 / load["requests_per_core_second"] for load in json.loads(done.stdout)["loads"]}
    return {kind: loads[kind] for kind in KINDS}


def measure() -> list[Cost]:
    """Measure each kind of request with and without tracing. Raises RuntimeError if no trace is received."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    traced, untraced = [], []
    with receiver() as one:
        for _ in range(TURNS):
            untraced.append(router_seconds(plain))
            traced.append(router_seconds(plain | {"OTEL_EXPORTER_OTLP_ENDPOINT": one.endpoint}))
        if not one.requests:
            raise RuntimeError("no trace reached the receiver")
    return [
        Cost(kind, *(statistics.median(turn[kind] for turn in turns) for turns in (traced, untraced))) for kind in KINDS
    ]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    costs = measure()
    if as_json:
        print(json.dumps([asdict(cost) for cost in costs]))
        return
    table = Table("a request of", "µs with a trace", "µs without", "more", title="CPU time of the router per request")
    for cost in costs:
        more = cost.traced / cost.untraced - 1
        table.add_row(cost.what, f"{cost.traced * 1e6:.0f}", f"{cost.untraced * 1e6:.0f}", f"{more:.1%}")
    Console().print(table)


if __name__ == "__main__":
    main()
