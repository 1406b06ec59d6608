"""docs/metrics.md, made from what the processes expose. `python -m tests.observability.document [--print]` writes it.

In a process of its own only: values of labels that something else counted before would be in it too.
"""

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import Metric

from v4_core.kubernetes import MONITORING_PORTS
from v4_core.metrics import SECONDS, TOKENS, process_registry
from v4_operator.config import OperatorConfig
from v4_operator.metrics import REGISTRY
from v4_router.fleet import Fleet
from v4_router.metrics import FleetCollector, Metrics
from v4_router.policy import Policy
from v4_worker.metrics import WorkerMetrics

FILE = Path(__file__).parents[2] / "docs" / "metrics.md"

_UNITS = ("seconds", "bytes", "tokens", "ratio")
_SUFFIXES = {"counter": "_total", "info": "_info"}
_OPEN_LABELS = {"version", "outcome"}  # whose values at the start are not all

_HEAD = """\
# Metrics

Every process answers `/metrics` on its monitoring port in Prometheus' text format. Written by
`python -m tests.observability.document` from what the processes expose; a test compares.

Times are in seconds, sizes in bytes or tokens; a counter only grows, and begins again at 0 with its process. Which pod,
deployment, role and revision a sample comes from is for the scraper to add (`pod`, `deployment`, `role`, `revision`,
`namespace`); a scrape must keep labels that a process sets itself (`honor_labels: true`).

A histogram NAME is the three series NAME_bucket, NAME_sum and NAME_count. Buckets of seconds, unless others are named:
{seconds}. Of tokens: {tokens}.
"""


@dataclass(frozen=True)
class Row:
    """One metric."""

    name: str
    kind: str
    labels: str
    unit: str
    meaning: str


def document() -> str:
    """The whole file."""
    router = Metrics()
    router.registry.register(FleetCollector(Fleet(Policy(), 1.0), lambda: 0))
    common = rows(process_registry())
    known = {row.name for row in common}
    ports = MONITORING_PORTS
    parts = {
        "Every process": common,
        f"Router (port {ports['router']})": rows(router.registry),
        f"Workers (prefill: port {ports['prefill']}, decode: port {ports['decode']})": rows(WorkerMetrics().registry),
        f"Operator (port {OperatorConfig.health_port})": rows(REGISTRY),
    }
    head = _HEAD.format(seconds=_list(SECONDS), tokens=_list(TOKENS))
    tables = [
        _table(title, part if part is common else [row for row in part if row.name not in known])
        for title, part in parts.items()
    ]
    return "\n".join([head, *tables])


def rows(registry: CollectorRegistry) -> list[Row]:
    """The metrics of a registry, in its order."""
    found = []
    for collector in registry._collector_to_names:  # a family does not say the labels of which it has no sample
        for family in collector.collect():
            labels = tuple(getattr(collector, "_labelnames", ()) or getattr(family, "_labelnames", ()))
            bounds = tuple(collector._kwargs["buckets"]) if isinstance(collector, Histogram) else ()
            found.append(_row(family, labels, bounds))
    return found


def _row(family: Metric, labels: tuple[str, ...], bounds: tuple[float, ...]) -> Row:
    if family.type == "info":
        labels = tuple(family.samples[0].labels)
    unit = next((unit for unit in _UNITS if f"_{unit}" in family.name), "")
    usual = {"seconds": SECONDS, "tokens": TOKENS}.get(unit, ())
    buckets = f". Buckets: {_list(bounds)}" if bounds not in ((), usual) else ""
    return Row(
        name=family.name + _SUFFIXES.get(family.type, ""),
        kind="gauge" if family.type == "info" else family.type,
        labels=", ".join(_label(family, label) for label in labels),
        unit=unit,
        meaning=family.documentation.rstrip(".") + buckets,
    )


def _label(family: Metric, label: str) -> str:
    """Its name, and its values where all are there from the start."""
    values = dict.fromkeys(sample.labels[label] for sample in family.samples if label in sample.labels)
    if not values or label in _OPEN_LABELS:
        return f"`{label}`"
    return f"`{label}` ({' '.join(values)})"


def _list(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:.12g}" for number in numbers)


def _table(title: str, found: list[Row]) -> str:
    lines = [f"## {title}", "", "| metric | type | labels | unit | meaning |", "|---|---|---|---|---|"]
    lines += [f"| `{row.name}` | {row.kind} | {row.labels} | {row.unit} | {row.meaning} |" for row in found]
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        print(document(), end="")
    else:
        FILE.write_text(document(), "utf-8")
