"""What rules, alerts and runbook pages ask for exists: metrics with their labels, fields of the spec, values."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts.generate import read
from charts.metrics_document import FILE

from tests.observability.prometheus import PrometheusTools
from tests.observability.promtest import FILES, rules_of

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "v4serve"
PAGES = sorted((ROOT / "docs" / "runbooks").glob("*.md"))

TARGET = {"namespace", "deployment", "pod", "role", "revision"}  # what scraping adds
_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) \| \w* \| .+ \|$", re.MULTILINE)
_LABEL = re.compile(r"`(\w+)`(?: \(([^)]*)\))?")
_SELECTOR = re.compile(r"\b((?:v4serve|process)_\w+)(?:\{([^}]*)\})?")
_MATCHER = re.compile(r'(\w+)=~?"([^"]*)"')
_RECORDED = re.compile(r"\b(?:v4serve|vllm):[\w:]+")
_GROUPING = re.compile(r"\b(?:by|on|without|group_left) \(([^)]*)\)")


@dataclass(frozen=True)
class Known:
    """A metric as docs/metrics.md has it, which is what the processes expose."""

    kind: str
    labels: dict[str, set[str]]  # and their values, where all are known


def known() -> dict[str, Known]:
    """All series by name."""
    found = {}
    for name, kind, labels in _ROW.findall(FILE.read_text(encoding="utf-8")):
        metric = Known(kind, {label: set(values.split()) for label, values in _LABEL.findall(labels)})
        for suffix in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found[name + suffix] = metric
    return found


KNOWN = known()


def queries(page: Path) -> Iterator[str]:
    """Queries of a runbook page: its code but the commands."""
    for line in re.findall(r"^    (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE):
        if not line.startswith("kubectl "):
            yield line


RECORDED = {str(rule["record"]) for path in FILES for rule in rules_of(path.name) if "record" in rule}
ASKED = {
    f"{path.name}: {rule.get('record') or rule['alert']} {rule.get('labels', '')}": str(rule["expr"])
    for path in FILES
    for rule in rules_of(path.name)
}
ASKED |= {f"{page.stem}: {query}": query for page in PAGES for query in queries(page)}


@pytest.mark.parametrize("expr", ASKED.values(), ids=ASKED)
def test_metrics_exist_with_the_labels_that_are_used(expr: str) -> None:
    asked, labels = _SELECTOR.findall(expr), set(TARGET)
    for name, matchers in asked:
        assert name in KNOWN
        labels |= {*KNOWN[name].labels, *(["le"] if name.endswith("_bucket") else [])}
        for label, values in _MATCHER.findall(matchers):
            assert label in labels, f"{name} has no label {label}"
            allowed = KNOWN[name].labels.get(label)
            assert not allowed or set(values.split("|")) <= allowed, f"{name}: {label} is never {values}"
    assert asked or _RECORDED.search(expr) or "up{" in expr or expr.startswith("vector(")
    for names in _GROUPING.findall(expr):
        assert set(names.split(", ")) <= labels, names


def test_pages_have_queries_that_prometheus_understands(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    rules = [{"record": "asked", "expr": query, "labels": {"n": str(n)}} for n, query in enumerate(ASKED.values())]
    file = tmp_path / "rules.yaml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "pages", "rules": rules}]}))
    assert f"{len(rules)} rules found" in prometheus_tools.promtool("check", "rules", file)
    assert all(list(queries(page)) for page in PAGES)


def test_recorded_names_that_are_asked_for_are_recorded() -> None:
    used = {name for expr in ASKED.values() for name in _RECORDED.findall(expr)}
    assert used
    assert used <= RECORDED


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_fields_and_values_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    definition = yaml.safe_load((CHART / "files" / "crd.yaml").read_text(encoding="utf-8"))
    schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    fields = re.findall(r"\.?\b((?:spec|status)(?:\.\w+)+)", text)
    assert [field for field in fields if not _exists(schema, field.split("."))] == []
    settings = {one.name for one in read((CHART / "values.yaml").read_text(encoding="utf-8")).settings()}
    assert set(re.findall(r"`((?:monitoring|operator)\.[\w.]+)`", text)) <= settings
    others = set(re.findall(r"\bV4Serve\w+", text))
    assert others <= {other.stem for other in PAGES}


def _exists(schema: dict[str, Any], path: list[str]) -> bool:
    """Whether a schema has this field, or forbids none."""
    if not path:
        return True
    below = schema.get("properties", {})
    return path[0] in below and _exists(below[path[0]], path[1:])
