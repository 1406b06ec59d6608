"""What the chart brings for Prometheus and Grafana: where, by which names, and with which content."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.helm import CHART, Helm, HelmFailed, Json, find, nested
from tests.operator.world import SETTINGS, v4deployment
from v4_core.kubernetes import DEPLOYMENT_LABEL, MONITORING_PORTS, REVISION_LABEL
from v4_core.metrics import SECONDS
from v4_operator.manifests.router_objects import router_deployment
from v4_operator.manifests.workers import Workers
from v4_operator.spec.size import Size

POD_MONITOR, SERVICE_MONITOR, RULES = (
    f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")
)
DASHBOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))


def _made(placement: str = "separate", **spec: Any) -> list[Json]:
    """Pod templates of a V4Deployment: of its router, and of its workers."""
    v4d = v4deployment({"placement": placement, **spec})
    workers = Workers(v4d, SETTINGS, "worker:1", "rev").deployments(Size(1, 1))
    return [one["spec"]["template"] for one in (router_deployment(v4d, SETTINGS, "router:1"), *workers)]


def _ports(template: Json) -> dict[str, int]:
    found = [port for container in template["spec"]["containers"] for port in container["ports"]]
    return {port["name"]: port["containerPort"] for port in found}


@pytest.mark.parametrize(
    ("kind", "switch", "count"),
    [(POD_MONITOR, "podMonitor", 1), (SERVICE_MONITOR, "serviceMonitor", 1), (RULES, "rules", 2)],
)
def test_auto_means_where_the_server_has_the_kind(helm: Helm, kind: str, switch: str, count: int) -> None:
    name, of_group = kind.rpartition("/")[2], "monitoring.coreos.com/v1"
    assert [one["kind"] for one in helm.objects(kinds=kind) if one["apiVersion"] == of_group] == [name] * count
    assert name not in {one["kind"] for one in helm.objects()}
    off = nested(f"monitoring.{switch}.enabled", False)
    assert name not in {one["kind"] for one in helm.objects(off, kinds=kind)}


@pytest.mark.parametrize("placement", ["separate", "shared"])
def test_every_monitoring_port_of_a_pod_is_scraped_once(helm: Helm, placement: str) -> None:
    spec = find(helm.objects(kinds=POD_MONITOR), "PodMonitor", "v4serve-pods")["spec"]
    scraped = {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]}
    templates = _made(placement)
    ports = {name: port for template in templates for name, port in _ports(template).items() if name in scraped}
    assert set(ports.values()) == set(MONITORING_PORTS.values())
    (expression,) = spec["selector"]["matchExpressions"]
    assert expression == {"key": DEPLOYMENT_LABEL, "operator": "Exists"}
    assert all(DEPLOYMENT_LABEL in template["metadata"]["labels"] for template in templates)


def test_targets_get_deployment_role_and_revision(helm: Helm) -> None:
    spec = find(helm.objects(kinds=POD_MONITOR), "PodMonitor", "v4serve-pods")["spec"]
    for endpoint in spec["podMetricsEndpoints"]:
        role = endpoint["port"].removeprefix("monitor-")
        assert endpoint["honorLabels"]
        assert endpoint["relabelings"] == [
            {"sourceLabels": [_meta(DEPLOYMENT_LABEL)], "targetLabel": "deployment"},
            {"sourceLabels": [_meta(REVISION_LABEL)], "targetLabel": "revision"},
            {"targetLabel": "role", "replacement": role},
        ]


def _meta(label: str) -> str:
    """As Prometheus names a pod's label."""
    return "__meta_kubernetes_pod_label_" + label.replace(".", "_").replace("/", "_")


def test_the_operator_is_scraped_at_the_port_that_it_has(helm: Helm) -> None:
    objects = helm.objects(kinds=SERVICE_MONITOR)
    spec = find(objects, "ServiceMonitor", "v4serve-operator")["spec"]
    service, deployment = find(objects, "Service"), find(objects, "Deployment")["spec"]
    assert spec["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert "namespaceSelector" not in spec  # its own
    assert service["spec"]["clusterIP"] == "None"  # each replica is a target
    assert service["spec"]["selector"] == deployment["selector"]["matchLabels"]
    (endpoint,), (port,) = spec["endpoints"], service["spec"]["ports"]
    assert endpoint["port"] == port["name"]
    assert port["port"] == _ports(deployment["template"])[port["targetPort"]]
    assert endpoint["honorLabels"]
    assert endpoint["relabelings"] == [{"targetLabel": "role", "replacement": "operator"}]


@pytest.mark.parametrize(("watched", "where"), [([], {"any": True}), (["one", "two"], {"matchNames": ["one", "two"]})])
def test_pods_are_looked_for_where_the_operator_makes_them(helm: Helm, watched: list[str], where: Json) -> None:
    objects = helm.objects({"watch": {"namespaces": watched}}, kinds=POD_MONITOR)
    assert find(objects, "PodMonitor", "v4serve-pods")["spec"]["namespaceSelector"] == where


@pytest.mark.parametrize(("placement", "ports"), [("separate", ["9100", "9101", "9102"]), ("shared", ["9100", "9101"])])
def test_pods_say_where_scrapers_without_podmonitors_find_metrics(placement: str, ports: list[str]) -> None:
    annotations = [template["metadata"]["annotations"] for template in _made(placement)]
    assert [one["prometheus.io/port"] for one in annotations] == ports
    assert all(one["prometheus.io/scrape"] == "true" for one in annotations)
    assert all(one["prometheus.io/path"] == "/metrics" for one in annotations)


def test_a_user_may_keep_such_scrapers_out() -> None:
    pod = {"pod": {"annotations": {"prometheus.io/scrape": "false"}}}
    for template in _made(router=pod, prefill=pod, decode=pod):
        assert template["metadata"]["annotations"]["prometheus.io/scrape"] == "false"


def test_the_operator_says_so_too(helm: Helm) -> None:
    template = find(helm.objects(), "Deployment")["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(_ports(template)["health"]),
        "prometheus.io/path": "/metrics",
    }


@pytest.mark.parametrize("name", ["vllm", "alerts"])
def test_rules_are_those_of_the_plain_file(helm: Helm, name: str) -> None:
    spec = find(helm.objects(kinds=RULES), "PrometheusRule", f"v4serve-{name}")["spec"]
    assert spec == yaml.safe_load((CHART / "files" / "rules" / f"{name}.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["timeToFirstTokenSeconds", "interTokenSeconds"])
def test_an_objective_may_be_any_bound_of_the_histograms(helm: Helm, name: str) -> None:
    assert helm.objects(nested(f"monitoring.slo.{name}", 300), kinds=RULES)
    with pytest.raises(
        HelmFailed, match=rf"{name}: 3 is not a bucket bound of the histogram: choose one of (.*)\n"
    ) as refusal:
        helm.objects(nested(f"monitoring.slo.{name}", 3), kinds=RULES)
    choices = str(refusal.value).partition("choose one of ")[2].partition("\n")[0].split(", ")
    assert choices == [str(float(bound)) for bound in SECONDS]


def test_objectives_do_not_get_into_each_other(helm: Helm) -> None:
    objects = helm.objects(
        {"monitoring": {"slo": {"timeToFirstTokenSeconds": 0.1, "interTokenSeconds": 2.5}}}, kinds=RULES
    )
    text = str(find(objects, "PrometheusRule", "v4serve-alerts")["spec"])
    assert 'v4serve_time_to_first_token_seconds_bucket{le="0.1"}' in text
    assert 'v4serve_inter_token_latency_seconds_bucket{le="2.5"}' in text


def test_there_are_dashboards() -> None:
    assert DASHBOARDS


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_is_shipped_as_it_is(helm: Helm, path: Path) -> None:
    name = f"v4serve-dashboard-{path.stem.removeprefix('v4serve-')}"
    shipped = find(helm.objects(), "ConfigMap", name)
    assert shipped["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert shipped["metadata"]["annotations"] == {"grafana_folder": "v4serve"}
    assert {file: json.loads(text) for file, text in shipped["data"].items()} == {
        path.name: json.loads(path.read_text())
    }
