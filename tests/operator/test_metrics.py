"""Metrics of V4Deployments and of the operator."""

from typing import Any

from prometheus_client import generate_latest

from v4_core.kubernetes import DEPLOYMENT_LABEL, KIND, REVISION_LABEL
from v4_operator.errors import KINDS
from v4_operator.kube.cache import Children, Parents
from v4_operator.metrics import REGISTRY, DeploymentCollector


def parent(name: str = "d", status: Any = None) -> dict[str, Any]:
    metadata = {
        "namespace": "n", "name": name, "uid": f"uid-{name}", "resourceVersion": "1", "creationTimestamp": "2026",
    }  # fmt: skip
    return {"kind": KIND, "metadata": metadata, "status": status or {}}


def child(kind: str, name: str, revision: str | None, uid: str = "uid-d") -> dict[str, Any]:
    labels = {DEPLOYMENT_LABEL: "d"} | ({REVISION_LABEL: revision} if revision else {})
    owner = {"kind": KIND, "name": "d", "uid": uid, "controller": True}
    metadata = {
        "namespace": "n", "name": name, "uid": f"uid-{name}", "resourceVersion": "1", "creationTimestamp": "2026",
        "labels": labels, "ownerReferences": [owner],
    }  # fmt: skip
    return {"kind": kind, "metadata": metadata}


def samples(collector: DeploymentCollector) -> dict[tuple[str, ...], float]:
    return {
        (family.name.removeprefix("v4serve_deployment_"), *sample.labels.values()): sample.value
        for family in collector.collect()
        for sample in family.samples
    }


def shown(*parents: dict[str, Any], children: tuple[dict[str, Any], ...] = ()) -> dict[tuple[str, ...], float]:
    known, made, collector = Parents(), Children(lambda _: None), DeploymentCollector()
    for obj in parents:
        known.put(obj)
    for obj in children:
        made.put(obj)
    collector.show(known.items, made.of)
    return samples(collector)


def test_a_v4deployment_in_full() -> None:
    status = {
        "conditions": [
            {"type": "Ready", "status": "True", "reason": "Serving"},
            {"type": "Degraded", "status": "False", "reason": "AsExpected"},
        ],
        "prefill": {"desired": 2, "ready": 1, "updated": 0, "revision": "a"},
        "decode": {"desired": 3, "ready": 3, "updated": 3},
        "router": {"desired": 2, "ready": 2},
    }
    assert shown(parent(status=status)) == {
        ("condition", "n", "d", "Ready", "True", "Serving"): 1,
        ("condition", "n", "d", "Degraded", "False", "AsExpected"): 1,
        ("workers", "n", "d", "prefill", "desired"): 2,
        ("workers", "n", "d", "prefill", "ready"): 1,
        ("workers", "n", "d", "prefill", "updated"): 0,
        ("workers", "n", "d", "decode", "desired"): 3,
        ("workers", "n", "d", "decode", "ready"): 3,
        ("workers", "n", "d", "decode", "updated"): 3,
        ("workers", "n", "d", "router", "desired"): 2,
        ("workers", "n", "d", "router", "ready"): 2,
        ("revisions", "n", "d"): 0,
    }


def test_one_without_a_status_yet() -> None:
    new = parent()
    del new["status"]
    assert shown(new) == {("revisions", "n", "d"): 0}


def test_revisions_are_those_of_deployments_and_pods_of_this_very_one() -> None:
    children = (
        child("Deployment", "d-prefill-a", "a"),
        child("Deployment", "d-decode-a", "a"),
        child("Pod", "d-decode-b-x", "b"),
        child("Deployment", "d-router", None),
        child("ConfigMap", "d-c", "c"),
        child("Deployment", "d-former", "z", uid="former"),
    )
    assert shown(parent(), children=children) == {("revisions", "n", "d"): 2}


def test_deleted_and_changed_v4deployments_leave_no_samples() -> None:
    known, collector = Parents(), DeploymentCollector()
    collector.show(known.items, Children(lambda _: None).of)
    one, other = parent("d"), parent("e")
    known.put(one)
    known.put(other)
    assert set(samples(collector)) == {("revisions", "n", "d"), ("revisions", "n", "e")}
    known.remove(one)
    assert set(samples(collector)) == {("revisions", "n", "e")}


def test_a_replica_that_does_not_lead_shows_none() -> None:
    assert samples(DeploymentCollector()) == {}


def test_counters_exist_before_the_first_event_and_there_are_none_of_python() -> None:
    text = generate_latest(REGISTRY).decode()
    for kind in KINDS:
        assert f'v4serve_operator_errors_total{{kind="{kind}"}}' in text
    assert len(set(KINDS)) == len(KINDS)
    assert 'v4serve_process_info{version="' in text
    assert "python_" not in text
