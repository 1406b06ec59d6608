"""Unit tests of rules, as promtool runs them: series go in, expressions are asked at times."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.observability.prometheus import PrometheusTools

RULES = Path(__file__).parents[2] / "charts" / "v4serve" / "files" / "rules"
FILES = sorted(RULES.glob("*.yaml"))

Rule = Mapping[str, Any]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Asked:
    """An expression, the minute at which it is asked, and the exact samples that must come."""

    expr: str
    minute: int
    samples: Sequence[tuple[Labels, float]] = field(default=())


def rules_of(name: str) -> list[Rule]:
    """Rules of this file, in their order."""
    groups = yaml.safe_load((RULES / name).read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def series(name: str, **labels: str) -> str:
    """A series as PromQL writes it."""
    inside = ",".join(f"{label}={json.dumps(value)}" for label, value in labels.items())
    return f"{name}{{{inside}}}"


def check(
    tools: PrometheusTools,
    rules: str,
    folder: Path,
    given: Mapping[str, str],
    *asked: Asked,
    **more: Any,
) -> None:
    """Ask all, with the rules of this file and these series, which have a value each minute.

    Raises CommandFailed, which says what came instead.
    """
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in given.items()],
        "promql_expr_test": [
            {
                "expr": one.expr,
                "eval_time": f"{one.minute}m",
                "exp_samples": [{"labels": series("", **labels), "value": value} for labels, value in one.samples],
            }
            for one in asked
        ],
    } | more
    file = folder / "test.yaml"
    whole = {"rule_files": [str(RULES / rules)], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(yaml.safe_dump(whole))
    tools.promtool("test", "rules", file)
