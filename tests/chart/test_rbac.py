"""What the operator may do, to the verb, and where."""

import pytest

from tests.chart.helm import Helm, Json, find
from v4_core.kubernetes import PLURAL
from v4_operator.manifests.router_objects import access_objects
from v4_operator.manifests.settings import Settings
from v4_operator.spec.v4deployment import Spec, V4Deployment

_READ = {"get", "list", "watch"}
_MAKE = {*_READ, "create", "delete"}
_CHANGE = {*_MAKE, "patch"}

# (group, resource) -> verbs, of all that the operator may do where it serves V4Deployments.
ALLOWED: dict[tuple[str, str], set[str]] = {
    ("v4serve.dev", PLURAL): {"list", "watch"},
    ("v4serve.dev", f"{PLURAL}/status"): {"patch"},
    ("v4serve.dev", f"{PLURAL}/finalizers"): {"update"},
    ("apps", "deployments"): _CHANGE,
    ("", "services"): _CHANGE,
    ("", "configmaps"): _CHANGE,
    ("", "serviceaccounts"): _CHANGE,
    ("", "secrets"): _CHANGE,
    ("", "persistentvolumeclaims"): _MAKE - {"delete"},
    ("", "pods"): _READ,
    ("", "events"): {"create"},
    ("batch", "jobs"): _CHANGE,
    ("rbac.authorization.k8s.io", "roles"): _CHANGE,
    ("rbac.authorization.k8s.io", "rolebindings"): _CHANGE,
    ("policy", "poddisruptionbudgets"): _CHANGE,
    ("networking.k8s.io", "networkpolicies"): _CHANGE,
}


def _verbs(role: Json) -> dict[tuple[str, str], set[str]]:
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


def test_the_operator_may_do_this_and_no_more(helm: Helm) -> None:
    role = find(helm.objects(), "ClusterRole")
    assert _verbs(role) == ALLOWED
    assert all("resourceNames" not in rule for rule in role["rules"])


def test_the_operator_holds_what_it_grants_to_routers() -> None:
    """The API server refuses to let anyone grant more than he has."""
    v4d = V4Deployment("demo", "team", "uid", 1, False, Spec())
    (granted,) = [one for one in access_objects(v4d, Settings("w", "r")) if one["kind"] == "Role"]
    assert all(verbs <= ALLOWED[resource] for resource, verbs in _verbs(granted).items())


def test_the_lease_is_the_only_one_of_its_namespace_that_may_be_changed(helm: Helm) -> None:
    objects = helm.objects()
    (container,) = find(objects, "Deployment")["spec"]["template"]["spec"]["containers"]
    name = next(a for a in container["args"] if a.startswith("--lease-name=")).partition("=")[2]
    role = find(objects, "Role", "v4serve-lease")
    assert role["metadata"]["namespace"] == "v4serve-system"
    assert role["rules"] == [
        {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"]},
        {
            "apiGroups": ["coordination.k8s.io"],
            "resources": ["leases"],
            "resourceNames": [name],
            "verbs": ["get", "update"],
        },
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},  # whether the holder is still there
    ]


def test_an_install_into_one_namespace_needs_no_right_beyond_it(helm: Helm) -> None:
    objects = helm.objects({"crds": {"install": False}, "watch": {"namespaces": ["team"]}}, namespace="team")
    assert {one["metadata"].get("namespace") for one in objects} == {"team"}
    assert _verbs(find(objects, "Role", "v4serve-team")) == ALLOWED


def test_each_watched_namespace_gets_a_role_and_its_binding(helm: Helm) -> None:
    objects = helm.objects({"watch": {"namespaces": ["one", "two"]}})
    for namespace in ("one", "two"):
        mine = [one for one in objects if one["metadata"].get("namespace") == namespace]
        binding = find(mine, "RoleBinding", "v4serve-v4serve-system")
        assert binding["roleRef"]["name"] == find(mine, "Role", "v4serve-v4serve-system")["metadata"]["name"]
        assert binding["subjects"] == [{"kind": "ServiceAccount", "name": "v4serve", "namespace": "v4serve-system"}]
    assert "ClusterRole" not in {one["kind"] for one in objects}


@pytest.mark.parametrize("kind", ["ClusterRole", "ClusterRoleBinding"])
def test_releases_of_one_name_in_two_namespaces_share_nothing(helm: Helm, kind: str) -> None:
    names = {find(helm.objects(namespace=namespace), kind)["metadata"]["name"] for namespace in ("one", "two")}
    assert names == {"v4serve-one", "v4serve-two"}


def test_the_test_may_touch_its_own_deployment_only(helm: Helm) -> None:
    role = find(helm.objects(), "Role", "test-v4serve")
    assert role["rules"] == [
        {
            "apiGroups": ["v4serve.dev"],
            "resources": [PLURAL],
            "resourceNames": ["test-v4serve"],
            "verbs": ["get", "delete"],
        },
        {"apiGroups": ["v4serve.dev"], "resources": [PLURAL], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["test-v4serve-api-key"], "verbs": ["get"]},
    ]


def test_the_test_of_a_deployment_that_exists_only_reads_it(helm: Helm) -> None:
    objects = helm.objects({"tests": {"target": "chat", "namespace": "models"}})
    role = find(objects, "Role", "test-v4serve")
    assert role["metadata"]["namespace"] == "models"
    assert role["rules"] == [
        {"apiGroups": ["v4serve.dev"], "resources": [PLURAL], "resourceNames": ["chat"], "verbs": ["get"]},
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["chat-api-key"], "verbs": ["get"]},
    ]


@pytest.mark.parametrize(
    ("watched", "namespace"),
    [([], "v4serve-system"), (["v4serve-system", "one"], "v4serve-system"), (["one", "two"], "one")],
)
def test_the_test_runs_where_the_operator_looks(helm: Helm, watched: list[str], namespace: str) -> None:
    objects = helm.objects({"watch": {"namespaces": watched}})
    hooks = [one for one in objects if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    assert {one["kind"] for one in hooks} == {"ServiceAccount", "ConfigMap", "Role", "RoleBinding", "Pod"}
    assert {one["metadata"]["namespace"] for one in hooks} == {namespace}
