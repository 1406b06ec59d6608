"""Unit tests of rules, as promtool runs them: series go in, expressions are asked at times."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
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
    return [rule for group in _parsed(RULES / name)["groups"] for rule in group["rules"]]


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
    alert: str = "",
    **more: Any,
) -> None:
    """Ask all, with the rules of this file and these series, which have a value each minute.

    With `alert`, only the rules that it consists of, as promtool evaluates every rule every minute. Raises
    CommandFailed, which says what came instead.
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
    rule_file = _alone(RULES / rules, alert, folder) if alert else RULES / rules
    whole = {"rule_files": [str(rule_file)], "evaluation_interval": "1m", "tests": [test]}
    file.write_text(yaml.safe_dump(whole))
    tools.promtool("test", "rules", file)


def _alone(rules: Path, alert: str, folder: Path) -> Path:
    """A file with the rules of this alert, one for each of its severities, and what they expect to be recorded."""
    groups = _parsed(rules)["groups"]
    every = [rule for group in groups for rule in group["rules"]]
    asked, before = "", " "
    while asked != before:
        before = asked
        wanted = [rule for rule in every if rule.get("alert") == alert or rule.get("record", "\n\n") in asked]
        asked = "\n".join(rule["expr"] for rule in wanted)
    kept = [{**group, "rules": [rule for rule in group["rules"] if rule in wanted]} for group in groups]
    file = folder / "rules.yaml"
    file.write_text(json.dumps({"groups": [group for group in kept if group["rules"]]}), encoding="utf-8")
    return file


@cache
def _parsed(rules: Path) -> Any:
    return yaml.safe_load(rules.read_text(encoding="utf-8"))
