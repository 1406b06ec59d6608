"""PodMonitor, ServiceMonitor and PrometheusRules keep to Prometheus Operator's schemas, without a key unknown to them;
and the check would tell if they did not."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.chart.helm import CHART, Helm, Json
from tests.observability.monitor_schema import check

GROUP = "monitoring.coreos.com/v1"
KINDS = ["PodMonitor", "PrometheusRule", "PrometheusRule", "ServiceMonitor"]
EVERYTHING: Json = {
    "global": {"labels": {"example.com/owner": "platform"}},
    "watch": {"namespaces": ["one", "two"]},
    "monitoring": {
        "labels": {"release": "prometheus"},
        "annotations": {"example.com/note": "kept"},
        "podMonitor": {"enabled": True},
        "serviceMonitor": {"enabled": True},
        "rules": {"enabled": True, "runbooks": "https://runbooks.example/v4serve"},
        "slo": {"timeToFirstTokenSeconds": 10, "interTokenSeconds": "0.25", "objective": "0.999"},
        "dashboards": {"enabled": True, "labels": {"grafana": "yes"}, "annotations": {"grafana_folder": "models"}},
    },
}


def _monitors(helm: Helm, values: Json) -> dict[str, Json]:
    kinds = ",".join(f"{GROUP}/{kind}" for kind in KINDS)
    found = [one for one in helm.objects(values, kinds=kinds) if one["apiVersion"] == GROUP]
    assert sorted(one["kind"] for one in found) == KINDS
    return {one["metadata"]["name"]: one for one in found}


def test_defaults_keep_to_the_schemas(helm: Helm, tmp_path: Path) -> None:
    assert check(_monitors(helm, {}), tmp_path) == []


def test_so_does_what_every_value_of_monitoring_makes(helm: Helm, tmp_path: Path) -> None:
    assert check(_monitors(helm, EVERYTHING), tmp_path) == []


def _settings(values: Json, prefix: str = "") -> Iterator[str]:
    """Paths of all settings; those below labels and annotations are the user's."""
    for name, value in values.items():
        if isinstance(value, dict) and name not in ("labels", "annotations"):
            yield from _settings(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_that_is_every_value() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    assert set(_settings(EVERYTHING["monitoring"])) == set(_settings(values["monitoring"]))


PODS, OPERATOR, RULES = "v4serve-pods", "v4serve-operator", "v4serve-alerts"
# Object, path in it, what is put there (None: it is removed), and what is said about that.
BREAKS: dict[str, tuple[str, str, Any, str]] = {
    "type": (PODS, "spec.podMetricsEndpoints.0.honorLabels", "yes", "Endpoints/0/honorLabels must be boolean"),
    "type_of_label": (OPERATOR, "metadata.labels.release", True, "metadata/labels/release must be string"),
    "unknown": (PODS, "spec.podMetricsEndpoints.0.relabelings.0.sourceLabel", "x", "'\"sourceLabel\"' does not exist"),
    "unknown_of_spec": (OPERATOR, "spec.scrapeInterval", "10s", "'\"scrapeInterval\"' does not exist"),
    "unknown_of_rule": (RULES, "spec.groups.0.rules.0.severity", "page", "'\"severity\"' does not exist"),
    "unknown_of_metadata": (RULES, "metadata.label", {}, "'\"label\"' does not exist"),
    "choice": (PODS, "spec.podMetricsEndpoints.0.relabelings.0.action", "change", "action must be equal to one of"),
    "lacking": (OPERATOR, "spec.selector", None, "spec must have required property selector"),
    "lacking_in_rule": (RULES, "spec.groups.0.rules.0.expr", None, "rules/0 must have required property expr"),
    "duration": (RULES, "spec.groups.0.interval", "1 minute", "groups/0/interval must match pattern"),
    "range": (PODS, "spec.podMetricsEndpoints.0.portNumber", 0, "portNumber must be >= 1"),
}


def test_what_is_wrong_is_told(helm: Helm, tmp_path: Path) -> None:
    """All at once, since the compiler takes seconds; each break in an object of its own."""
    made = _monitors(helm, EVERYTHING)
    broken = {name: _broken(made[which], path, value) for name, (which, path, value, _) in BREAKS.items()}
    complaints = check(broken, tmp_path)
    told = {name: [line for line in complaints if line.startswith((f"{name}.ts(", f"{name}:"))] for name in BREAKS}
    assert [name for name in BREAKS if not any(BREAKS[name][3] in line for line in told[name])] == [], complaints


def _broken(sound: Json, path: str, value: Any) -> Json:
    whole = copy.deepcopy(sound)
    *way, last = path.split(".")
    at: Any = whole
    for key in way:
        at = at[int(key)] if isinstance(at, list) else at[key]
    if value is None:
        del at[last]
    else:
        at[last] = value
    return whole
