"""What counts as different, and whose an object is."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_core.kubernetes import DEPLOYMENT_LABEL, MANAGED_BY_LABEL, MANAGER
from v4_operator.observed.compare import (
    APPLIED_ANNOTATION,
    contains,
    create_only,
    digest,
    is_leaving,
    is_ours,
    needs_write,
    stamped,
)

DEPLOYMENT: dict[str, Any] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "a", "namespace": "n", "labels": {DEPLOYMENT_LABEL: "d", MANAGED_BY_LABEL: MANAGER}},
    "spec": {
        "replicas": 2,
        "template": {
            "metadata": {"annotations": {}},
            "spec": {
                "containers": [
                    {
                        "name": "c",
                        "args": ["--memory", "1000m"],
                        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"cpu": 2}},
                        "env": [{"name": "EMPTY", "value": ""}],
                        "tty": False,
                    }
                ],
                "volumes": [],
            },
        },
    },
}


def as_served(desired: dict[str, Any]) -> dict[str, Any]:
    """What a server makes of it: defaults added, empties dropped, amounts in their own words."""
    live = stamped(copy.deepcopy(desired))
    live["metadata"] |= {"uid": "u", "resourceVersion": "7", "generation": 1}
    live["status"] = {"readyReplicas": 1}
    live["spec"]["strategy"] = {"type": "RollingUpdate"}
    pod = live["spec"]["template"]["spec"]
    container = pod["containers"][0]
    container["resources"] = {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}
    container["env"] = [{"name": "EMPTY"}]
    container["imagePullPolicy"] = "Always"
    del container["tty"], pod["volumes"], live["spec"]["template"]["metadata"]
    return live


def test_what_the_server_makes_of_an_object_is_no_difference() -> None:
    assert not needs_write(stamped(DEPLOYMENT), as_served(DEPLOYMENT))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "replicas"), 3),
        (("spec", "replicas"), 0),
        (("metadata", "labels", DEPLOYMENT_LABEL), "e"),
        (("metadata", "labels"), None),
        (("metadata", "annotations", APPLIED_ANNOTATION), "other"),
        (("spec", "template", "spec", "containers", 0, "args"), ["--memory", "1"]),
        (("spec", "template", "spec", "containers", 0, "args"), ["--memory"]),
        (("spec", "template", "spec", "containers", 0, "args"), ["--memory", "1000m", "--more"]),
        (("spec", "template", "spec", "containers", 0, "env", 0, "value"), "x"),
        (("spec", "template", "spec", "containers", 0, "resources", "requests", "cpu"), "1001m"),
        (("spec", "template", "spec", "containers", 0, "resources", "requests"), {"cpu": "1"}),
        (("spec", "template", "spec", "containers", 0, "tty"), True),
        (("spec", "template", "spec", "volumes"), [{"name": "more"}]),
        (("spec", "template", "spec", "containers"), {}),
    ],
)
def test_drift_is_seen(path: tuple[str | int, ...], value: object) -> None:
    live: Any = as_served(DEPLOYMENT)
    at = live
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert needs_write(stamped(DEPLOYMENT), live)


@pytest.mark.parametrize("first", [True, False])
def test_what_others_add_to_lists_with_keys_is_no_difference(first: bool) -> None:
    live: Any = as_served(DEPLOYMENT)
    pod = live["spec"]["template"]["spec"]
    at = 0 if first else 1
    pod["containers"][0]["env"].insert(at, {"name": "OTHERS", "value": "1"})
    pod["containers"].insert(at, {"name": "mesh", "image": "mesh:1"})
    pod["initContainers"] = [{"name": "mesh", "image": "mesh:1"}]
    live["metadata"].setdefault("ownerReferences", []).append({"uid": "other"})
    assert not needs_write(stamped(DEPLOYMENT), live)
    pod["containers"][at ^ 1 if first else 0]["args"] = []
    assert needs_write(stamped(DEPLOYMENT), live)


POLICY: dict[str, Any] = {
    "podSelector": {"matchLabels": {"a": "1"}},
    "ingress": [{"from": [{"podSelector": {"matchLabels": {"b": "1"}}}], "ports": [{"port": 1, "protocol": "TCP"}]}],
}


@pytest.mark.parametrize(
    ("desired", "path", "value"),
    [
        (POLICY, ("podSelector", "matchLabels", "more"), "1"),
        (POLICY, ("podSelector", "matchExpressions"), [{"key": "c", "operator": "Exists"}]),
        (POLICY, ("ingress", 0, "from", 0, "namespaceSelector"), {"matchLabels": {"c": "1"}}),
        (POLICY, ("ingress", 0, "ports"), [{"port": 1, "protocol": "TCP"}, {"port": 2, "protocol": "TCP"}]),
        (POLICY, ("ingress", 0, "ports", 0, "endPort"), 9),
        ({"rules": [{"resources": ["pods"]}]}, ("rules", 0, "resourceNames"), ["one"]),
        ({"subjects": [{"name": "a"}]}, ("subjects",), [{"name": "a"}, {"name": "b"}]),
        ({"selector": {"role": "router"}}, ("selector", "more"), "1"),
    ],
)
def test_what_others_add_to_fields_of_one_manager_is_drift(
    desired: dict[str, Any], path: tuple[str | int, ...], value: object
) -> None:
    """A selector with one more label selects nothing, a rule with one more peer lets anyone in."""
    live: Any = copy.deepcopy(desired)
    assert contains(desired, live)
    at = live
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert not contains(desired, live)


def test_a_field_that_is_no_longer_desired_is_written_though_nothing_else_differs() -> None:
    live = as_served(DEPLOYMENT)
    less = copy.deepcopy(DEPLOYMENT)
    del less["spec"]["template"]["spec"]["containers"][0]["args"]
    assert contains(less, live)
    assert needs_write(stamped(less), live)


@pytest.mark.parametrize(
    ("desired", "live", "same"),
    [
        ("500m", "0.5", True),
        ("1Gi", "1024Mi", True),
        (2, "2", True),
        ("1e3", "1k", True),
        ("1", "1m", False),
        ("much", "1", False),
        ("1", None, False),
    ],
)
def test_quantities(desired: object, live: object, same: bool) -> None:
    assert contains({"requests": {"cpu": desired}}, {"requests": {"cpu": live}}) is same
    assert contains({"emptyDir": {"sizeLimit": desired}}, {"emptyDir": {"sizeLimit": live}}) is same
    if isinstance(desired, str):
        assert not contains({"args": [desired]}, {"args": [live]})


scalars = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=3))
trees = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(["a", "b", "requests", "sizeLimit"]), inner, max_size=4),
    ),
    max_leaves=12,
)
objects = st.dictionaries(st.sampled_from(["spec", "data", "x"]), trees, max_size=3)


@given(trees)
def test_everything_contains_itself(tree: object) -> None:
    assert contains(tree, copy.deepcopy(tree))


@given(st.dictionaries(st.text(max_size=2), trees, max_size=3), st.dictionaries(st.text(max_size=2), trees, max_size=3))
def test_what_others_added_is_no_difference(desired: dict[str, Any], added: dict[str, Any]) -> None:
    assert contains(desired, {**added, **desired})


@given(objects, trees)
def test_equal_after_being_written_and_different_after_a_change(body: dict[str, Any], value: Any) -> None:
    desired = {"kind": "X", "metadata": {"name": "a"}, **body}
    live = stamped(desired)
    assert not needs_write(stamped(desired), live)
    changed = {**desired, "y": value}
    assert needs_write(stamped(changed), live)


@given(objects)
def test_a_hash_knows_no_order(body: dict[str, Any]) -> None:
    assert digest(body) == digest(dict(reversed(body.items())))


def test_stamping_changes_nothing_in_place() -> None:
    before = copy.deepcopy(DEPLOYMENT)
    assert (
        stamped(DEPLOYMENT)["metadata"]["annotations"][APPLIED_ANNOTATION]
        == f"{DEPLOYMENT['metadata']['name']} {digest(DEPLOYMENT)}"
    )
    assert before == DEPLOYMENT


def owned(uid: str, *, name: str = "d", kind: str = "V4Deployment", **metadata: Any) -> dict[str, Any]:
    owner = {"kind": kind, "name": name, "uid": uid, "controller": True}
    labels = {DEPLOYMENT_LABEL: "d", MANAGED_BY_LABEL: MANAGER}
    return {"kind": "Service", "metadata": {"labels": labels, "ownerReferences": [owner], **metadata}}


@pytest.mark.parametrize(
    ("live", "ours", "leaving"),
    [
        (owned("1"), True, False),
        (owned("1", ownerReferences=None), True, False),
        (owned("1", ownerReferences=[{"kind": "Other", "name": "o", "uid": "3"}]), True, False),
        (owned("1", deletionTimestamp="now"), True, True),
        (owned("2"), False, True),
        (owned("2", name="e"), False, False),
        (owned("2", kind="ReplicaSet"), False, False),
        (owned("1", labels={}), True, False),
        (owned("1", labels=None), True, False),
        (owned("1", labels=None, ownerReferences=None), False, False),
        (owned("1", labels={DEPLOYMENT_LABEL: "d"}, ownerReferences=None), False, False),
        (owned("1", labels={DEPLOYMENT_LABEL: "e", MANAGED_BY_LABEL: MANAGER}, ownerReferences=None), False, False),
        ({"kind": "Service", "metadata": {"name": "a"}}, False, False),
    ],
)
def test_whose_it_is(live: dict[str, Any], ours: bool, leaving: bool) -> None:
    assert is_ours(owned("1"), live) is ours
    assert is_leaving(owned("1"), live) is leaving


def test_what_has_no_owner_is_shared() -> None:
    claim = owned("1", ownerReferences=[])
    assert is_ours(claim, {"kind": "PersistentVolumeClaim", "metadata": {}})
    assert not is_leaving(claim, owned("2"))


def test_create_only() -> None:
    assert create_only(owned("1", annotations={"v4serve.dev/create-only": "true"}))
    assert not create_only(owned("1"))
