"""The chart on a real API server: who has the definition, what the operator may do, and what `helm test` sees."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_rbac import ALLOWED
from tests.cluster.machine.cluster import Cluster, ServingCluster
from tests.cluster.machine.errors import CommandFailed

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).parents[2]
CHART = str(ROOT / "charts" / "v4serve")
CRD = "v4deployments.v4serve.dev"
NAMESPACES = ("chart-one", "chart-two")
TESTED = "chart-tested"
# What everybody with an account may do.
_BASICS = {("authorization.k8s.io", "selfsubjectaccessreviews"), ("authorization.k8s.io", "selfsubjectrulesreviews")}


@pytest.fixture(scope="module")
def namespaces(control_plane: Cluster) -> Iterator[Cluster]:
    """The cluster with two namespaces for releases."""
    if control_plane.get("crd", "--field-selector", f"metadata.name={CRD}")["items"]:
        pytest.skip(f"the cluster has {CRD}: these tests would delete every V4Deployment")
    for namespace in NAMESPACES:
        control_plane.kubectl("create", "namespace", namespace)
    yield control_plane
    control_plane.kubectl("delete", "namespace", *NAMESPACES, "--wait=false")


@pytest.fixture
def clean(namespaces: Cluster) -> Iterator[Cluster]:
    """The cluster without a release and without the definition, afterwards too."""
    cluster = namespaces
    yield cluster
    for release in json.loads(cluster.helm("list", "--all-namespaces", "--output=json")):
        if release["namespace"] in NAMESPACES:
            cluster.helm("uninstall", release["name"], "--namespace", release["namespace"], "--wait")
    cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")


def _install(cluster: Cluster, release: str, namespace: str, *flags: str, verb: str = "install") -> str:
    """Install, without operators, since no image is needed here; the notes."""
    chosen = ("--set", "operator.replicas=0", *flags)
    return cluster.helm(verb, release, CHART, "--namespace", namespace, *chosen).partition("\nNOTES:\n")[2]


def _owner(cluster: Cluster) -> tuple[str, str]:
    annotations = cluster.get("crd", CRD)["metadata"]["annotations"]
    assert annotations["helm.sh/resource-policy"] == "keep"
    return annotations["meta.helm.sh/release-name"], annotations["meta.helm.sh/release-namespace"]


def _make_demo(cluster: Cluster) -> None:
    demo = (ROOT / "examples" / "demo.yaml").read_text()
    cluster.wait(lambda: cluster.kubectl("get", "v4d", check=False) == "", 60, "the definition is served")
    cluster.kubectl("apply", "--namespace", NAMESPACES[0], "--filename=-", input=demo)


def _manifest_has_crd(cluster: Cluster, release: str, namespace: str) -> bool:
    return "kind: CustomResourceDefinition" in cluster.helm("get", "manifest", release, "--namespace", namespace)


def test_uninstalled_and_installed_again_under_its_name(clean: Cluster) -> None:
    one, _ = NAMESPACES
    _install(clean, "a", one)
    _make_demo(clean)
    clean.helm("uninstall", "a", "--namespace", one)
    uid = clean.get("v4d", "demo", "--namespace", one)["metadata"]["uid"]
    assert "belongs to" not in _install(clean, "a", one)
    assert _manifest_has_crd(clean, "a", one)
    assert clean.get("v4d", "demo", "--namespace", one)["metadata"]["uid"] == uid


def test_uninstalled_and_installed_under_another_name(clean: Cluster) -> None:
    one, two = NAMESPACES
    _install(clean, "a", one)
    _make_demo(clean)
    clean.helm("uninstall", "a", "--namespace", one)
    notes = _install(clean, "b", two)
    assert notes.startswith(f"WARNING: the CustomResourceDefinition {CRD} belongs to release a in namespace {one}")
    assert _owner(clean) == ("a", one)
    _take_over(clean, notes)
    assert "belongs to" not in _install(clean, "b", two, verb="upgrade")
    assert _owner(clean) == ("b", two)
    assert _manifest_has_crd(clean, "b", two)
    assert clean.get("v4d", "demo", "--namespace", one)


def _take_over(cluster: Cluster, notes: str) -> None:
    """The commands of the notes, as they stand there."""
    for line in notes.replace("\\\n", "").splitlines():
        command = line.split()
        if command[:2] in (["kubectl", "label"], ["kubectl", "annotate"]):
            cluster.kubectl(*command[1:])


def test_a_release_that_lost_the_definition_leaves_it_alone(clean: Cluster) -> None:
    one, two = NAMESPACES
    _install(clean, "a", one)
    _make_demo(clean)
    _take_over(clean, _install(clean, "b", two, "--set", f"watch.namespaces={{{two}}}"))
    for step in ("upgrade", "uninstall"):
        if step == "upgrade":
            _install(clean, "a", one, verb="upgrade")
        else:
            clean.helm("uninstall", "a", "--namespace", one)
        assert _owner(clean) == ("b", two)
        assert clean.get("v4d", "demo", "--namespace", one)


def test_a_release_that_no_longer_wants_the_definition_keeps_it(clean: Cluster) -> None:
    one, _ = NAMESPACES
    _install(clean, "a", one)
    _make_demo(clean)
    _install(clean, "a", one, "--set", "crds.install=false", verb="upgrade")
    assert not _manifest_has_crd(clean, "a", one)
    assert clean.get("v4d", "demo", "--namespace", one)


def test_an_upgrade_changes_the_definition(clean: Cluster) -> None:
    one, _ = NAMESPACES
    _install(clean, "a", one)
    added = {"op": "remove", "path": "/spec/names/shortNames"}
    clean.kubectl("patch", "crd", CRD, "--type=json", f"--patch={json.dumps([added])}", "--field-manager=helm")
    assert "shortNames" not in clean.get("crd", CRD)["spec"]["names"]
    _install(clean, "a", one, verb="upgrade")
    assert clean.get("crd", CRD)["spec"]["names"]["shortNames"] == ["v4d"]


def test_the_definition_alone_then_a_release_for_one_namespace(clean: Cluster) -> None:
    """As the README has it; the release is installed by someone who may do nothing beyond the namespace."""
    one, _ = NAMESPACES
    version = json.loads(clean.kubectl("version", "--output=json"))["serverVersion"]["gitVersion"]
    shown = ("--show-only", "templates/crd.yaml", "--kube-version", version)
    alone = clean.helm("template", "v4serve", CHART, *shown)
    clean.kubectl("apply", "--server-side", "--field-manager=helm", "--filename=-", input=alone)
    clean.kubectl("create", "role", "owner", "--namespace", one, "--verb=*", "--resource=*.*")
    clean.kubectl("create", "rolebinding", "owner", "--namespace", one, "--role=owner", "--user=ann")
    narrow = ("--set", f"crds.install=false,watch.namespaces={{{one}}}", "--kube-as-user", "ann")
    assert "of namespace chart-one." in _install(clean, "v4serve", one, *narrow)


@pytest.mark.parametrize("watched", [(), (NAMESPACES[1],)], ids=["all namespaces", "one namespace"])
def test_the_operator_may_do_what_it_does_and_no_more(clean: Cluster, watched: tuple[str, ...]) -> None:
    own, other = NAMESPACES
    _install(clean, "v4serve", own, "--set-json", f"watch.namespaces={json.dumps(watched)}")
    lease = {("coordination.k8s.io", "leases"): {"create", "get", "update"}}
    assert _rights(clean, own, other) == ALLOWED
    own_rights = lease | {("", "pods"): {"get"}}  # to see whether the pod that holds the Lease is there
    assert _rights(clean, own, own) == (own_rights if watched else ALLOWED | lease)
    assert _rights(clean, own, "default") == ({} if watched else ALLOWED)


def _rights(cluster: Cluster, release_namespace: str, namespace: str) -> dict[tuple[str, str], set[str]]:
    """What `kubectl auth can-i --list` knows of the operator in a namespace: (group, resource) -> verbs."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectRulesReview",
        "spec": {"namespace": namespace},
    }
    account = f"--as=system:serviceaccount:{release_namespace}:v4serve"
    groups = ("--as-group=system:serviceaccounts", "--as-group=system:authenticated")
    answer = cluster.kubectl("create", "--filename=-", "--output=json", account, *groups, input=json.dumps(review))
    found: dict[tuple[str, str], set[str]] = {}
    for rule in json.loads(answer)["status"]["resourceRules"]:
        for key in [(group, resource) for group in rule["apiGroups"] for resource in rule["resources"]]:
            if key not in _BASICS:
                found.setdefault(key, set()).update(rule["verbs"])
    return found


# Verb, object, and whether the operator may in its own namespace: what a name limits, and what it must never do.
CAN_I = (
    ("get", "leases/v4serve", True),
    ("update", "leases/v4serve", True),
    ("update", "leases/other", False),
    ("delete", "leases/v4serve", False),
    ("create", "pods", False),
    ("delete", "pods", False),
    ("update", "secrets", False),
    ("patch", "persistentvolumeclaims", False),
    ("delete", "persistentvolumeclaims", False),
    ("create", CRD, False),
    ("patch", CRD, False),
    ("create", "clusterroles", False),
    ("list", "namespaces", False),
    ("list", "customresourcedefinitions", False),
)


def test_can_i(clean: Cluster) -> None:
    own, _ = NAMESPACES
    _install(clean, "v4serve", own)
    account = f"--as=system:serviceaccount:{own}:v4serve"
    said = {
        (verb, what): clean.kubectl("auth", "can-i", verb, what, "--namespace", own, account, check=False).strip()
        for verb, what, _ in CAN_I
    }
    assert said == {(verb, what): "yes" if allowed else "no" for verb, what, allowed in CAN_I}


@pytest.fixture
def release(cluster: ServingCluster, image: str) -> Iterator[ServingCluster]:
    """A release of the chart with its operator, on a cluster whose pods run, for its own namespace alone."""
    if cluster.get("crd", "--field-selector", f"metadata.name={CRD}")["items"]:
        pytest.skip(f"the cluster has {CRD}: this test would delete every V4Deployment")
    repository, _, tag = image.rpartition(":")
    same = {"repository": repository, "tag": tag}
    values = {"image": {"router": same, "worker": same}, "watch": {"namespaces": [TESTED]}}
    cluster.kubectl("create", "namespace", TESTED)
    try:
        wait = ("--wait", "--timeout=3m", "--values=-")
        cluster.helm("install", "v4serve", CHART, "--namespace", TESTED, *wait, input=yaml.safe_dump(values))
        yield cluster
    finally:
        cluster.helm("uninstall", "v4serve", "--namespace", TESTED, "--ignore-not-found")
        cluster.kubectl("delete", "crd", CRD, "--ignore-not-found")
        cluster.kubectl("delete", "namespace", TESTED, "--wait=false")


def test_helm_test_sees_a_transfer_and_leaves_nothing(release: ServingCluster) -> None:
    try:
        said = release.helm("test", "v4serve", "--namespace", TESTED, "--logs", "--timeout=6m")
    except CommandFailed:
        print(release.kubectl("get", "v4d", "--namespace", TESTED, "--output=yaml"))
        raise
    assert "Phase:          Succeeded" in said
    assert "PASSED: " in said
    assert "deleted V4Deployment test-v4serve" in said
    release.wait(lambda: not _left(release, TESTED), 120, "nothing of the test is left")


def _left(cluster: Cluster, namespace: str) -> list[Any]:
    """Objects of the test, and of the V4Deployment that it made."""
    kinds = "v4d,pod,deployment,service,configmap,secret,serviceaccount,role,rolebinding,networkpolicy,pdb"
    items = cluster.get(kinds, "--namespace", namespace)["items"]
    names = [f"{item['kind']} {item['metadata']['name']}" for item in items]
    # Tokens of service accounts are made by the cluster, and go after them.
    return [name for name in names if " test-v4serve" in name]
