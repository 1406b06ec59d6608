"""The shipped scrape configuration finds what the operator and the chart make, and names it as rules expect."""

from pathlib import Path

import prometheus_client
from prometheus_client import CollectorRegistry, Gauge

from tests.observability.discovery import Json, rule_files, scrape_configs, write_targets
from tests.observability.prometheus import Prometheus, PrometheusTools
from tests.observability.promtest import FILES
from tests.operator.world import SETTINGS, v4deployment
from v4_operator.manifests.router_objects import router_deployment
from v4_operator.manifests.workers import Workers
from v4_operator.spec.size import Size


def pods(name: str, placement: str, phase: str = "Running") -> list[Json]:
    """Of a V4Deployment, one of each kind."""
    v4d = v4deployment({"placement": placement}, name=name)
    deployments = Workers(v4d, SETTINGS, "worker:1", "rev").deployments(Size(1, 1))
    return [
        {
            "metadata": {
                "name": f"{made['metadata']['name']}-x",
                "namespace": v4d.namespace,
                "labels": made["spec"]["template"]["metadata"]["labels"],
            },
            "spec": made["spec"]["template"]["spec"],
            "status": {"phase": phase},
        }
        for made in (router_deployment(v4d, SETTINGS, "router:1"), *deployments)
    ]


def operator_pod() -> Json:
    """As the chart has it."""
    own = {"app.kubernetes.io/name": "v4serve", "app.kubernetes.io/component": "operator"}
    container = {"ports": [{"name": "health", "containerPort": 8080}]}
    metadata = {"name": "op", "namespace": "system", "labels": own}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": "Running"}}


def other_pod() -> Json:
    """Not of this project, though its port has such a name."""
    container = {"ports": [{"name": "monitor-router", "containerPort": 9100}]}
    metadata = {"name": "other", "namespace": "default", "labels": {"app": "other"}}
    return {"metadata": metadata, "spec": {"containers": [container]}, "status": {"phase": "Running"}}


EXPECTED = {
    ("v4serve", "demo", "router", "", "demo-router-x"),
    ("v4serve", "demo", "prefill", "rev", "demo-prefill-rev-x"),
    ("v4serve", "demo", "decode", "rev", "demo-decode-rev-x"),
    ("v4serve", "pairs", "router", "", "pairs-router-x"),
    ("v4serve", "pairs", "prefill", "rev", "pairs-pair-rev-x"),
    ("v4serve", "pairs", "decode", "rev", "pairs-pair-rev-x"),
    ("v4serve-operator", "", "operator", "", "op"),
}


def test_every_monitoring_port_becomes_one_target(prometheus_tools: PrometheusTools, tmp_path: Path) -> None:
    everything = [
        *pods("demo", "separate"),
        *pods("pairs", "shared"),
        *pods("over", "separate", "Succeeded"),
        operator_pod(),
        other_pod(),
    ]
    registry = CollectorRegistry()
    Gauge("about_another", "Has a role of its own", ["role"], registry=registry).labels("own").set(1)
    server, thread = prometheus_client.start_http_server(0, "127.0.0.1", registry)
    address = f"127.0.0.1:{server.server_address[1]}"
    try:
        targets = tmp_path / "pods.json"
        write_targets(targets, everything, lambda pod, port: (address, f"/{port}"))
        configs = scrape_configs(targets)
        with Prometheus(prometheus_tools, tmp_path / "p", scrape_configs=configs, interval=0.2) as prometheus:
            prometheus.wait_until_scraped()
            found = [one.labels for one in prometheus.query("up")]
            keys = ("job", "deployment", "role", "revision", "pod")
            assert sorted(tuple(one.get(key, "") for key in keys) for one in found) == sorted(EXPECTED)
            assert {one["namespace"] for one in found} == {"models", "system"}
            assert {one.labels["role"] for one in prometheus.query("about_another")} == {"own"}
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_the_rules_are_those_that_are_shipped() -> None:
    assert sorted(rule_files()) == FILES
