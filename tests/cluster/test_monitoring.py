"""A real Prometheus over the pods of a cluster, as the shipped configuration finds them; and objects of its operator.

It runs on this machine and reaches pods through the API server's proxy, so that any cluster will do.
"""

import json
import math
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
import yaml
from charts.dashboards.__main__ import dashboards

from tests.cluster.conftest import skip_or_fail
from tests.cluster.installed import NAME, NAMESPACE, SYSTEM, Installed, is_leaving, name_of
from tests.cluster.machine import build
from tests.cluster.machine.cluster import Cluster
from tests.cluster.machine.errors import PartMissing
from tests.observability.dashboards import PanelQuery, queries
from tests.observability.discovery import Json, rule_files, scrape_configs, write_targets
from tests.observability.prometheus import Prometheus, PrometheusTools

pytestmark = pytest.mark.cluster

GROUP = "monitoring.coreos.com"
KINDS = {"PodMonitor": "podmonitors", "ServiceMonitor": "servicemonitors", "PrometheusRule": "prometheusrules"}
# Longer than a block of the cache, so that the second time its blocks are there.
PROMPT = "Once upon a time there was a small boat that sailed on the wide sea. " * 40
REQUESTS = 12
RECORDED_SECONDS = 60.0
SCRAPED_SECONDS = 100.0  # it reads its targets every 5 s at most
_INTERVAL = 2.0
_ROLES = ("router", "prefill", "decode", "operator")


@contextmanager
def proxy(cluster: Cluster) -> Iterator[str]:
    """host:port on loopback where the API server answers without credentials."""
    command = ["kubectl", "proxy", "--port=0"]
    with subprocess.Popen(command, env=cluster.environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield process.stdout.readline().rpartition(" on ")[2].strip()
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def tools() -> PrometheusTools:
    """Prometheus and promtool."""
    try:
        return PrometheusTools(build.prometheus_tools())
    except PartMissing as error:
        skip_or_fail(str(error))
        raise


def _pods(demo: Installed, role: str) -> list[Json]:
    """Those that stay."""
    found = demo.operators() if role == "operator" else demo.pods(role)
    return [pod for pod in found if not is_leaving(pod)]


class Scraped:
    """The demo's pods and the operator's, and a Prometheus that is told which there are."""

    def __init__(self, demo: Installed, tools: PrometheusTools, folder: Path, address: str) -> None:
        """`address`: of the API server, for whoever asks without credentials."""
        self._demo, self._address, self._targets = demo, address, folder / "pods.json"
        configs = scrape_configs(self._targets)
        self.prometheus = Prometheus(
            tools, folder / "prometheus", scrape_configs=configs, rules=rule_files(), interval=_INTERVAL
        )

    def find(self) -> None:
        """Scrape the pods that there are now."""
        write_targets(self._targets, [pod for role in _ROLES for pod in _pods(self._demo, role)], self._reach)

    def wait_until_found(self) -> None:
        """Until each of these was scraped twice, and no other is."""
        wanted = {(role, name_of(pod)) for role in _ROLES for pod in _pods(self._demo, role)}

        def found() -> bool:
            return {(one["labels"]["role"], one["labels"]["pod"]) for one in self.prometheus.targets()} == wanted

        self._demo.cluster.wait(found, SCRAPED_SECONDS, f"Prometheus scrapes {sorted(wanted)}")
        self.prometheus.wait_until_scraped()

    def _reach(self, pod: Json, port: int) -> tuple[str, str]:
        metadata = pod["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}:{port}/proxy/metrics"
        return self._address, path


@pytest.fixture
def scraped(demo: Installed, tools: PrometheusTools, tmp_path: Path) -> Iterator[Scraped]:
    """Prometheus has scraped every pod twice."""
    with proxy(demo.cluster) as address:
        made = Scraped(demo, tools, tmp_path, address)
        made.find()
        with made.prometheus:
            made.wait_until_found()
            yield made


def renew_decode(demo: Installed) -> None:
    """The only decode worker goes and another one comes: it is probed, and the deployment becomes Ready again."""
    demo.patch({"decode": {"replicas": 0}})
    demo.wait_for("Ready", "ScaledToZero")
    demo.patch({"decode": {"replicas": 1}})
    demo.settle()


def load(demo: Installed) -> None:
    """Some completions, of which all but the first find their prompt in the cache; the operator has to look too."""
    with demo.url() as url, openai.OpenAI(base_url=f"{url}/v1", api_key=demo.key(), max_retries=0) as client:
        for number in range(REQUESTS):
            demo.kubectl("annotate", "v4d", NAME, f"look={number}", "--overwrite")
            client.completions.create(model=NAME, prompt=PROMPT, max_tokens=32)


def test_a_loaded_deployment_fills_rules_and_dashboards(demo: Installed, scraped: Scraped) -> None:
    prometheus, start = scraped.prometheus, time.time()
    renew_decode(demo)
    scraped.find()
    scraped.wait_until_found()
    load(demo)
    prometheus.wait_for(f"min(timestamp(up)) > {time.time()}", seconds=RECORDED_SECONDS)
    rules = [group["rules"] for path in rule_files() for group in yaml.safe_load(path.read_text())["groups"]]
    for rule in (rule for group in rules for rule in group if "record" in rule):
        found = prometheus.wait_for(rule["record"], seconds=RECORDED_SECONDS)
        if rule["record"].startswith("vllm:"):
            assert {(one.labels["model_name"], one.labels["engine"]) for one in found} == {(NAME, "0")}
            assert {(one.labels["namespace"], one.labels["deployment"]) for one in found} == {(NAMESPACE, NAME)}
    [hits] = prometheus.wait_for("sum(vllm:prefix_cache_hits_total) > 0")
    [transfers] = prometheus.wait_for(f"sum(vllm:nixl_xfer_time_seconds_count) >= {REQUESTS}")
    print(f"{hits.value:.0f} tokens hit, {transfers.value:.0f} transfers")
    assert {alert["labels"]["alertname"] for alert in prometheus.alerts() if alert["state"] == "firing"} == set()
    without = [one for one in _all_queries() if not _has_numbers(prometheus, one.expr, start)]
    assert [str(one) for one in without] == []


def _all_queries() -> list[PanelQuery]:
    return [one for dashboard in dashboards().values() for one in queries(dashboard)]


def _has_numbers(prometheus: Prometheus, expr: str, start: float) -> bool:
    """Whether it was a number at some time since then."""
    found = prometheus.query_range(expr, start, time.time(), 1)
    return any(math.isfinite(sample.value) for samples in found for sample in samples)


@pytest.fixture
def kinds(installed: Installed) -> Iterator[None]:
    """The kinds of Prometheus Operator, of which the chart makes objects; no operator is there to read them."""
    cluster = installed.cluster
    if cluster.get("crd", "--field-selector", f"metadata.name=podmonitors.{GROUP}")["items"]:
        pytest.skip("the cluster has Prometheus Operator already")
    for kind, plural in KINDS.items():
        cluster.kubectl("apply", "--filename=-", input=json.dumps(_definition(kind, plural)))
    names = [f"{plural}.{GROUP}" for plural in KINDS.values()]
    cluster.kubectl("wait", "crd", *names, "--for=condition=Established", "--timeout=60s")
    yield
    installed.helm(
        "upgrade", monitoring={kind: {"enabled": False} for kind in ("podMonitor", "serviceMonitor", "rules")}
    )
    cluster.kubectl("delete", "crd", *names)
    installed.helm("upgrade")


def _definition(kind: str, plural: str) -> Json:
    names = {"kind": kind, "plural": plural, "singular": kind.lower()}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def test_monitors_and_rules_come_with_their_kinds_and_restart_nothing(installed: Installed, kinds: None) -> None:
    before = sorted(map(name_of, installed.operators())), installed.pods_as_they_are()
    installed.helm("upgrade", monitoring={"labels": {"release": "prometheus"}})
    found = {
        kind: installed.cluster.get(f"{plural}.{GROUP}", "--namespace", SYSTEM, "--selector", "release=prometheus")
        for kind, plural in KINDS.items()
    }
    names = {kind: sorted(map(name_of, one["items"])) for kind, one in found.items()}
    assert names == {
        "PodMonitor": ["v4serve-pods"],
        "ServiceMonitor": ["v4serve-operator"],
        "PrometheusRule": ["v4serve-alerts", "v4serve-vllm"],
    }
    assert (sorted(map(name_of, installed.operators())), installed.pods_as_they_are()) == before


def test_dashboards_are_there_for_grafana(installed: Installed) -> None:
    found = installed.cluster.get("configmaps", "--namespace", SYSTEM, "--selector", "grafana_dashboard=1")["items"]
    assert len(found) == len(dashboards())
    assert all(one["metadata"]["annotations"]["grafana_folder"] == "v4serve" for one in found)
