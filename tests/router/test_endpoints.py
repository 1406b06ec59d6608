"""The endpoints of pods, by tables."""

from typing import Any

import pytest

from v4_router.endpoints import WorkerEndpoint, by_address, listed, of_pod


def pod(**changes: Any) -> dict[str, Any]:
    """Returns a ready pod with a decode worker, in the Kubernetes API's JSON."""
    about = {
        "ip": "10.0.0.7",
        "phase": "Running",
        "ready": "True",
        "deleted": None,
        "labels": {"v4serve.dev/deployment": "demo", "v4serve.dev/revision": "abc"},
        "containers": [{"name": "decode", "ports": [{"name": "decode", "containerPort": 5102}]}],
    } | changes
    meta = {
        "name": "demo-decode-abc-x",
        "uid": "u1",
        "labels": about["labels"],
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    if about["deleted"]:
        meta["deletionTimestamp"] = about["deleted"]
    conditions = [
        {"type": "PodScheduled", "status": "True"},
        *([{"type": "Ready", "status": about["ready"]}] if about["ready"] else []),
    ]
    status = {"phase": about["phase"], "podIP": about["ip"], "conditions": conditions}
    return {"metadata": meta, "spec": {"containers": about["containers"]}, "status": status}


WORKER = WorkerEndpoint(
    "10.0.0.7:5102", "decode", "abc", "demo-decode-abc-x", "u1", True, False, "2026-01-01T00:00:00Z"
)  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({}, {}, id="ready"),
        pytest.param({"ready": "False"}, {"ready": False}, id="not ready"),
        pytest.param({"ready": "Unknown"}, {"ready": False}, id="its node is lost"),
        pytest.param({"ready": None}, {"ready": False}, id="no condition yet"),
        pytest.param({"deleted": "2026-01-02T00:00:00Z"}, {"leaving": True}, id="being deleted"),
        pytest.param({"labels": None}, {"revision": ""}, id="no labels"),
        pytest.param({"ip": "fd00::7"}, {"address": "[fd00::7]:5102"}, id="IPv6"),
        pytest.param(
            {"containers": [{"name": "decode", "ports": [{"name": "decode", "containerPort": 7}]}]},
            {"address": "10.0.0.7:7"},
            id="another port",
        ),
    ],
)
def test_a_pod_with_a_worker(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    (found,) = of_pod(pod(**changes))
    assert found == WorkerEndpoint(**{name: getattr(WORKER, name) for name in WORKER.__slots__} | expected)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"ip": None}, id="no address yet"),
        pytest.param({"phase": "Succeeded"}, id="ended"),
        pytest.param({"phase": "Failed"}, id="evicted"),
        pytest.param({"containers": [{"name": "router"}]}, id="no ports"),
        pytest.param(
            {
                "containers": [
                    {"name": "router", "ports": [{"name": "http", "containerPort": 8000}, {"containerPort": 1}]}
                ]
            },
            id="another component",
        ),
    ],
)
def test_pods_without_a_worker(changes: dict[str, Any]) -> None:
    assert of_pod(pod(**changes)) == ()


def test_a_pod_without_status_has_no_worker() -> None:
    assert of_pod({**pod(), "status": None}) == ()


def test_a_pod_with_one_worker_of_each_role() -> None:
    containers = [
        {"name": "x", "ports": [{"name": "monitoring", "containerPort": 1}, {"name": role, "containerPort": port}]}
        for role, port in (("prefill", 5101), ("decode", 5102))
    ]
    found = of_pod(pod(containers=containers))
    assert [(e.role, e.address) for e in found] == [("prefill", "10.0.0.7:5101"), ("decode", "10.0.0.7:5102")]


def test_of_two_pods_with_one_address_the_one_that_stays_counts() -> None:
    old = WorkerEndpoint("a:1", "decode", uid="1", created="2026-01-01T00:00:00Z")
    new = WorkerEndpoint("a:1", "decode", uid="2", created="2026-01-02T00:00:00Z")
    gone = WorkerEndpoint("a:1", "decode", uid="3", created="2026-01-03T00:00:00Z", leaving=True)
    for order in ([old, new, gone], [gone, new, old]):
        assert by_address(order) == {"a:1": new}
    assert by_address([gone]) == {"a:1": gone}


def test_named_workers_are_always_ready() -> None:
    assert listed(("a:1",), ("b:2",)) == (WorkerEndpoint("a:1", "prefill"), WorkerEndpoint("b:2", "decode"))
