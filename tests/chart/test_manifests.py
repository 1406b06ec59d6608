"""What the chart renders: by default, for each setting, for each scenario, and by the server's version."""

import json
from collections.abc import Callable
from typing import Any

import kubernetes_validate
import pytest
import yaml
from charts.generate import read

from tests.chart.helm import CHART, NEWEST, OLDEST, SCENARIOS, Helm, HelmFailed, Json, find, nested, run_once
from v4_core.kubernetes import MONITORING_PORTS, ROLE_LABEL

SNAPSHOT = CHART.parents[1] / "tests" / "chart" / "default.yaml"


def test_the_default_is_as_recorded(helm: Helm) -> None:
    """Definition and dashboards are left out: they are files of the chart."""
    rendered = helm.template({"crds": {"install": False}, "monitoring": {"dashboards": {"enabled": False}}})
    assert rendered == SNAPSHOT.read_text(), (
        "after a wanted change: helm template v4serve charts/v4serve --namespace v4serve-system "
        f"--kube-version {NEWEST} --set crds.install=false,monitoring.dashboards.enabled=false "
        "> tests/chart/default.yaml"
    )


def _deployment(objects: list[Json]) -> Json:
    return find(objects, "Deployment")


def _pod(objects: list[Json]) -> Json:
    spec: Json = _deployment(objects)["spec"]["template"]["spec"]
    return spec


def _container(objects: list[Json]) -> Json:
    (container,) = _pod(objects)["containers"]
    return dict(container)


def _arguments(objects: list[Json]) -> list[str]:
    return list(_container(objects)["args"])


def _pod_labels(objects: list[Json]) -> Json:
    labels: Json = _deployment(objects)["spec"]["template"]["metadata"]["labels"]
    return labels


def _test_pod(objects: list[Json]) -> Json:
    return find(objects, "Pod")


def _environment(objects: list[Json]) -> dict[str, str]:
    (container,) = _test_pod(objects)["spec"]["containers"]
    return {one["name"]: one.get("value", "") for one in container["env"]}


def _policy(objects: list[Json]) -> Json:
    spec: Json = find(objects, "NetworkPolicy")["spec"]
    return spec


def _of_kind(objects: list[Json], kind: str) -> list[Json]:
    return [one for one in objects if one["kind"] == kind]


def _rules(objects: list[Json]) -> str:
    return str([one["spec"] for one in _of_kind(objects, "PrometheusRule")])


def _recorded(objects: list[Json], name: str) -> str:
    groups = [group for one in _of_kind(objects, "PrometheusRule") for group in one["spec"]["groups"]]
    (expr,) = [rule["expr"] for group in groups for rule in group["rules"] if rule.get("record") == name]
    return str(expr)


def _dashboards(objects: list[Json]) -> list[Json]:
    return [one for one in _of_kind(objects, "ConfigMap") if "-dashboard-" in one["metadata"]["name"]]


def _monitors(objects: list[Json]) -> list[Json]:
    return [one for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule") for one in _of_kind(objects, kind)]


def _has_name(objects: list[Json], kind: str, name: str) -> bool:
    return any(one["kind"] == kind and one["metadata"]["name"] == name for one in objects)


_DIGEST = "sha256:" + "0" * 64
_PEER = {"podSelector": {"matchLabels": {"app": "prometheus"}}}

# Setting -> a value, and what must hold of the manifests then.
OPTIONS: dict[str, tuple[Any, Callable[[list[Json]], bool]]] = {
    "global.imageRegistry": (
        "mirror:5000/a/",
        lambda found: (
            _container(found)["image"] == "mirror:5000/a/v4serve-router:0.1.0"
            and "--worker-image=mirror:5000/a/v4serve-worker:0.1.0" in _arguments(found)
            and "--router-image=mirror:5000/a/v4serve-router:0.1.0" in _arguments(found)
            and _test_pod(found)["spec"]["containers"][0]["image"] == "mirror:5000/a/v4serve-router:0.1.0"
        ),
    ),
    "global.imagePullSecrets": (
        ["one", {"name": "two"}],
        lambda found: (
            _pod(found)["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
            and _test_pod(found)["spec"]["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
            and [a for a in _arguments(found) if "pull-secret" in a] == ["--pull-secret=one", "--pull-secret=two"]
        ),
    ),
    "global.labels": (
        {"owner": "me", "app.kubernetes.io/name": "other"},
        lambda found: (
            all(one["metadata"]["labels"]["owner"] == "me" for one in found)
            and all(one["metadata"]["labels"]["app.kubernetes.io/name"] == "v4serve" for one in found)
            and _pod_labels(found)["owner"] == "me"
            and "owner" not in _deployment(found)["spec"]["selector"]["matchLabels"]
            and "--common-label=owner=me" in _arguments(found)
        ),
    ),
    "fullnameOverride": ("other", lambda found: _deployment(found)["metadata"]["name"] == "other"),
    "logFormat": ("json", lambda found: "--log-format=json" in _arguments(found)),
    "crds.install": (False, lambda found: "CustomResourceDefinition" not in {one["kind"] for one in found}),
    "watch.namespaces": (
        ["one", "two"],
        lambda found: (
            [a for a in _arguments(found) if "namespace" in a]
            == ["--namespace=one", "--namespace=two", "--lease-namespace=v4serve-system"]
            and {one["metadata"]["namespace"] for one in found if one["kind"] == "Role"}
            == {"one", "two", "v4serve-system"}
        ),
    ),
    "image.pullPolicy": (
        "Always",
        lambda found: (
            _container(found)["imagePullPolicy"] == "Always"
            and "--pull-policy=Always" in _arguments(found)
            and _test_pod(found)["spec"]["containers"][0]["imagePullPolicy"] == "Always"
        ),
    ),
    "image.router.repository": ("other", lambda found: _container(found)["image"] == "other:0.1.0"),
    "image.router.tag": ("9", lambda found: _container(found)["image"] == "v4serve-router:9"),
    "image.router.digest": (_DIGEST, lambda found: _container(found)["image"] == f"v4serve-router@{_DIGEST}"),
    "image.worker.repository": ("other", lambda found: "--worker-image=other:0.1.0" in _arguments(found)),
    "image.worker.tag": ("9", lambda found: "--worker-image=v4serve-worker:9" in _arguments(found)),
    "image.worker.digest": (_DIGEST, lambda found: f"--worker-image=v4serve-worker@{_DIGEST}" in _arguments(found)),
    "operator.replicas": (
        2,
        lambda found: (
            _deployment(found)["spec"]["replicas"] == 2
            and find(found, "PodDisruptionBudget")["spec"]["selector"] == _deployment(found)["spec"]["selector"]
        ),
    ),
    "operator.resources": (
        {"limits": {"cpu": "1"}},
        lambda found: (
            _container(found)["resources"]
            == {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "50m", "memory": "128Mi"}}
        ),
    ),
    "operator.serviceAccount.create": (
        False,
        lambda found: not _has_name(found, "ServiceAccount", "mine") and _pod(found)["serviceAccountName"] == "mine",
    ),
    "operator.serviceAccount.name": (
        "mine",
        lambda found: (
            _has_name(found, "ServiceAccount", "mine")
            and _pod(found)["serviceAccountName"] == "mine"
            and find(found, "ClusterRoleBinding")["subjects"][0]["name"] == "mine"
        ),
    ),
    "operator.serviceAccount.annotations": (
        {"a": "b"},
        lambda found: find(found, "ServiceAccount", "v4serve")["metadata"]["annotations"] == {"a": "b"},
    ),
    "operator.podAnnotations": (
        {"a": "b", "prometheus.io/scrape": "false"},
        lambda found: (
            _deployment(found)["spec"]["template"]["metadata"]["annotations"]
            == {
                "a": "b",
                "prometheus.io/scrape": "false",
                "prometheus.io/port": "8080",
                "prometheus.io/path": "/metrics",
            }
        ),
    ),
    "operator.podLabels": (
        {"a": "b", "app.kubernetes.io/component": "other"},
        lambda found: (
            _pod_labels(found)["a"] == "b" and _pod_labels(found)["app.kubernetes.io/component"] == "operator"
        ),
    ),
    "operator.podSecurityContext": (
        {"fsGroup": 5},
        lambda found: (
            _pod(found)["securityContext"]
            == {"fsGroup": 5, "runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        ),
    ),
    "operator.securityContext": (
        {"runAsUser": 5},
        lambda found: (
            _container(found)["securityContext"]
            == {
                "runAsUser": 5,
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
        ),
    ),
    "operator.nodeSelector": ({"a": "b"}, lambda found: _pod(found)["nodeSelector"] == {"a": "b"}),
    "operator.tolerations": (
        [{"operator": "Exists"}],
        lambda found: _pod(found)["tolerations"] == [{"operator": "Exists"}],
    ),
    "operator.affinity": ({"nodeAffinity": {}}, lambda found: _pod(found)["affinity"] == {"nodeAffinity": {}}),
    "operator.topologySpreadConstraints": (
        [{"maxSkew": 1}],
        lambda found: _pod(found)["topologySpreadConstraints"] == [{"maxSkew": 1}],
    ),
    "operator.priorityClassName": ("high", lambda found: _pod(found)["priorityClassName"] == "high"),
    "operator.networkPolicy.enabled": (False, lambda found: "NetworkPolicy" not in {one["kind"] for one in found}),
    "operator.networkPolicy.apiServerPorts": (
        [16443],
        lambda found: {"ports": [{"port": 16443, "protocol": "TCP"}]} in _policy(found)["egress"],
    ),
    "operator.networkPolicy.scrapeFrom": (
        [_PEER],
        lambda found: (
            _policy(found)["ingress"] == [{"from": [_PEER], "ports": [{"port": 8080, "protocol": "TCP"}]}]
            and f"--scrape-from={json.dumps(_PEER, separators=(',', ':'))}" in _container(found)["args"]
        ),
    ),
    "monitoring.labels": (
        {"release": "prometheus", "app.kubernetes.io/name": "other"},
        lambda found: (
            [one["metadata"]["labels"]["release"] for one in _monitors(found)] == ["prometheus"] * 4
            and all(one["metadata"]["labels"]["app.kubernetes.io/name"] == "v4serve" for one in _monitors(found))
        ),
    ),
    "monitoring.annotations": (
        {"a": "b"},
        lambda found: [one["metadata"]["annotations"] for one in _monitors(found)] == [{"a": "b"}] * 4,
    ),
    "monitoring.podMonitor.enabled": (
        True,
        lambda found: [one["kind"] for one in _monitors(found)] == ["PodMonitor"] and not _of_kind(found, "Service"),
    ),
    "monitoring.serviceMonitor.enabled": (
        True,
        lambda found: (
            [one["kind"] for one in _monitors(found)] == ["ServiceMonitor"] and len(_of_kind(found, "Service")) == 1
        ),
    ),
    "monitoring.rules.enabled": (
        True,
        lambda found: [one["kind"] for one in _monitors(found)] == ["PrometheusRule"] * 2,
    ),
    "monitoring.rules.runbooks": (
        "https://pages.example/v4serve/",
        lambda found: (
            "'https://pages.example/v4serve/V4ServeRouterDown.md'" in _rules(found)
            and "docs/runbooks" not in _rules(found)
            and "https://github.com" not in _rules(found)
        ),
    ),
    "monitoring.slo.timeToFirstTokenSeconds": (
        5,
        lambda found: (
            _rules(found).count('v4serve_time_to_first_token_seconds_bucket{le="5.0"}') == 4
            and _recorded(found, "v4serve:slo_time_to_first_token_seconds") == "vector(5.0)"
            and _rules(found).count('{le="0.1"}') == 4
            and '{le="2.5"}' not in _rules(found)
        ),
    ),
    "monitoring.slo.interTokenSeconds": (
        "0.025",
        lambda found: (
            _rules(found).count('v4serve_inter_token_latency_seconds_bucket{le="0.025"}') == 4
            and _recorded(found, "v4serve:slo_inter_token_seconds") == "vector(0.025)"
            and _rules(found).count('{le="2.5"}') == 4
            and '{le="0.1"}' not in _rules(found)
        ),
    ),
    "monitoring.slo.objective": (
        0.995,
        lambda found: (
            _rules(found).count("(1 - 0.995)") == 8
            and _recorded(found, "v4serve:slo_objective") == "vector(0.995)"
            and "0.99)" not in _rules(found)
        ),
    ),
    "monitoring.dashboards.enabled": (False, lambda found: not _dashboards(found)),
    "monitoring.dashboards.labels": (
        {"grafana_dashboard": "2", "a": "b"},
        lambda found: (
            {
                (one["metadata"]["labels"]["grafana_dashboard"], one["metadata"]["labels"]["a"])
                for one in _dashboards(found)
            }
            == {("2", "b")}
        ),
    ),
    "monitoring.dashboards.annotations": (
        {"grafana_folder": "models"},
        lambda found: {one["metadata"]["annotations"]["grafana_folder"] for one in _dashboards(found)} == {"models"},
    ),
    "tests.target": (
        "chat",
        lambda found: (_environment(found)["DEPLOYMENT"], _environment(found)["MAKE"]) == ("chat", "false"),
    ),
    "tests.namespace": ("models", lambda found: _test_pod(found)["metadata"]["namespace"] == "models"),
    "tests.timeoutSeconds": (60, lambda found: _environment(found)["TIMEOUT_SECONDS"] == "60"),
}
# What a setting needs beside itself.
_WITH = {"operator.serviceAccount.create": {"operator": {"serviceAccount": {"create": False, "name": "mine"}}}}
_MONITORS = ",".join(f"monitoring.coreos.com/v1/{kind}" for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule"))
_KINDS = {name: _MONITORS for name in OPTIONS if name.startswith("monitoring.") and not name.endswith(".enabled")}


def test_every_setting_has_a_case() -> None:
    settings = {one.name for one in read((CHART / "values.yaml").read_text()).settings()}
    assert settings == set(OPTIONS)


@pytest.mark.parametrize("name", OPTIONS)
def test_a_setting_changes_what_it_says(helm: Helm, name: str) -> None:
    value, holds = OPTIONS[name]
    assert holds(helm.objects(_WITH.get(name, nested(name, value)), kinds=_KINDS.get(name, "")))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
@pytest.mark.parametrize("server", [OLDEST, NEWEST])
def test_scenarios_are_valid(helm: Helm, scenario: Any, server: str) -> None:
    """Against the schema of that server's version, or the oldest that is at hand."""
    objects = helm.objects(scenario, server=server)
    assert len(objects) >= 8
    for one in objects:
        if one["apiVersion"] == "policy/v1beta1":  # older than every schema at hand
            one["apiVersion"] = "policy/v1"
        kubernetes_validate.validate(one, server if server == NEWEST else "1.25", strict=True)


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda path: path.stem)
def test_lint_finds_nothing(helm: Helm, scenario: Any) -> None:
    helm.run("lint", "--strict", CHART, "--values", scenario)


@pytest.mark.parametrize(
    ("server", "version"), [("1.20", "policy/v1beta1"), ("1.21", "policy/v1"), (NEWEST, "policy/v1")]
)
def test_the_disruption_budget_is_of_a_version_that_the_server_has(helm: Helm, server: str, version: str) -> None:
    objects = helm.objects({"operator": {"replicas": 2}}, server=server)
    assert find(objects, "PodDisruptionBudget")["apiVersion"] == version


def test_a_single_operator_never_holds_up_the_draining_of_its_node(helm: Helm) -> None:
    assert "PodDisruptionBudget" not in {one["kind"] for one in helm.objects()}


def test_the_policy_names_what_routers_have(helm: Helm) -> None:
    (rule,) = [rule for rule in _policy(helm.objects())["egress"] if "to" in rule]
    assert rule["to"] == [{"namespaceSelector": {}, "podSelector": {"matchLabels": {ROLE_LABEL: "router"}}}]
    assert rule["ports"] == [{"port": MONITORING_PORTS["router"], "protocol": "TCP"}]


def test_nothing_may_come_in_where_nobody_scrapes(helm: Helm) -> None:
    policy = _policy(helm.objects())
    assert "ingress" not in policy
    assert policy["policyTypes"] == ["Ingress", "Egress"]


def test_pods_are_restricted(helm: Helm) -> None:
    """As the strictest Pod Security level asks."""
    objects = helm.objects()
    for spec in (_pod(objects), _test_pod(objects)["spec"]):
        assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert container["resources"]["requests"]


def test_policy_and_budget_select_the_operator_and_not_the_test(helm: Helm) -> None:
    objects = helm.objects({"operator": {"replicas": 2}})
    selector = _policy(objects)["podSelector"]["matchLabels"]
    assert selector == find(objects, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"]
    assert selector.items() <= _deployment(objects)["spec"]["template"]["metadata"]["labels"].items()
    assert not selector.items() <= _test_pod(objects)["metadata"]["labels"].items()


@pytest.mark.parametrize(
    ("release", "name"),
    [
        ("v4serve", "v4serve"),
        ("my-v4serve", "my-v4serve"),
        ("models", "models-v4serve"),
        ("1.20", "1-20-v4serve"),
        ("123", "123-v4serve"),
        ("a" * 53, "a" * 52),
    ],
)
def test_names_follow_the_release(helm: Helm, release: str, name: str) -> None:
    objects = helm.objects(release=release, namespace="42")
    assert _deployment(objects)["metadata"]["name"] == name
    assert all(one["metadata"].get("namespace", "42") == "42" for one in objects)
    for one in objects:
        kubernetes_validate.validate(one, NEWEST, strict=True)


def test_what_git_keeps_does_not_change_from_one_rendering_to_the_next(helm: Helm) -> None:
    first = helm.template()
    run_once.cache_clear()
    assert helm.template() == first


def test_names_that_look_like_numbers_stay_texts(helm: Helm) -> None:
    text = helm.template({"watch": {"namespaces": ["1e3"]}, "global": {"imagePullSecrets": ["12"]}})
    assert 'namespace: "1e3"' in text  # what YAML 1.2 reads as a number, and the parser of these tests does not
    assert _pod([found for found in yaml.safe_load_all(text) if found])["imagePullSecrets"] == [{"name": "12"}]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("global.imageRegistry", "https://registry.example.com", "write host[:port][/path] without a scheme"),
        ("global.imageRegistry", "registry.example.com/My Mirror", "such as registry.example.com/mirror"),
        ("global.imageRegistry", "/mirror", "without a scheme"),
        ("image.router.repository", "docker://example.com/router", "without a scheme and without a tag"),
        ("image.worker.repository", "example.com/worker:1", "without a tag"),
        ("image.worker.tag", "sha256:1234", "a digest is set with image.worker.digest"),
    ],
)
def test_an_image_that_no_node_could_pull_is_refused(helm: Helm, name: str, value: str, says: str) -> None:
    with pytest.raises(HelmFailed) as refusal:
        helm.template(nested(name, value))
    assert f'{name}: "{value}" is not a valid ' in str(refusal.value)
    assert says in str(refusal.value)


@pytest.mark.parametrize(
    "registry", ["localhost:5000", "registry.example.com/a_b/c-d", "[::1]:5000", "10.0.0.1/", "Host"]
)
def test_registries(helm: Helm, registry: str) -> None:
    found = _container(helm.objects(nested("global.imageRegistry", registry)))
    assert found["image"] == f"{registry.removesuffix('/')}/v4serve-router:0.1.0"
