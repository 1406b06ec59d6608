"""What comes and goes: V4Deployments, their namespace, the release, operators; and who repairs what."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.installed import (
    DEADLINE_SECONDS,
    NAME,
    RELEASE,
    SYSTEM,
    Installed,
    is_leaving,
    is_ready,
    manifest,
    name_of,
)

pytestmark = pytest.mark.cluster

IDLE = "idle"
_NOBODY: dict[str, Any] = {pool: {"replicas": 0} for pool in ("prefill", "decode", "router")}
_FETCHED = {"model": {"huggingFace": {"repository": "nobody/nothing", "size": "1Gi"}}, **_NOBODY}


@pytest.fixture
def idle(installed: Installed) -> Iterator[Installed]:
    """Beside the demo a V4Deployment with all its children but no pod."""
    installed.apply({"model": {"demo": {}}, **_NOBODY}, IDLE)
    installed.wait_for("Progressing", "Complete", IDLE)
    yield installed
    installed.kubectl("delete", "v4d", IDLE, "--ignore-not-found")


def _wait_for_no_children(installed: Installed) -> None:
    installed.cluster.wait(lambda: not installed.children(IDLE), DEADLINE_SECONDS, "all children are gone")


def test_a_deployment_is_deleted_without_an_operator(installed: Installed) -> None:
    """Its children go, a pod that never started among them; the claim for a fetched model belongs to nobody."""
    installed.apply(_FETCHED, IDLE)
    installed.wait_for("Progressing", "FetchingModel", IDLE)
    [claim] = installed.kubectl("get", "pvc", "--output=name").split()
    installed.cluster.wait(lambda: any("pod/" in child for child in installed.children(IDLE)), 60, "the Job has a pod")
    installed.scale_operator(0)
    try:
        installed.kubectl("delete", "v4d", IDLE, f"--timeout={DEADLINE_SECONDS:.0f}s")
        _wait_for_no_children(installed)
        assert installed.kubectl("get", "pvc", "--output=name").split() == [claim]
    finally:
        installed.scale_operator(1)
        installed.kubectl("delete", claim)


def test_nothing_is_made_again_while_a_deployment_goes(idle: Installed) -> None:
    """Deletion in the foreground: the V4Deployment stays until its last child is gone."""
    before = idle.writes()
    idle.kubectl("delete", "v4d", IDLE, "--cascade=foreground", f"--timeout={DEADLINE_SECONDS:.0f}s")
    assert not idle.children(IDLE)
    assert idle.writes() == before


def test_a_namespace_is_deleted(installed: Installed) -> None:
    kubectl, namespace = installed.cluster.kubectl, "serving-gone"
    kubectl("create", "namespace", namespace)
    kubectl("apply", "--namespace", namespace, "--filename=-", input=manifest(IDLE, _FETCHED))
    installed.cluster.wait(
        lambda: kubectl("get", "job", "--namespace", namespace, "--output=name"), DEADLINE_SECONDS, "there is a Job"
    )
    leader = installed.leader()
    kubectl("delete", "namespace", namespace, f"--timeout={DEADLINE_SECONDS:.0f}s")
    assert installed.leader() == leader
    assert not any(pod["status"]["containerStatuses"][0]["restartCount"] for pod in installed.operators())


def test_a_release_that_is_installed_again_adopts_what_exists(demo: Installed) -> None:
    demo.replace_operator()  # which takes in the rate of transfers that other tests caused
    before, pods = demo.versions(), demo.pods_as_they_are()
    demo.cluster.helm("uninstall", RELEASE, "--namespace", SYSTEM)
    try:
        demo.cluster.wait(lambda: not any(map(is_ready, demo.operators())), DEADLINE_SECONDS, "the operator has ended")
        assert demo.versions() == before
        former = demo.leader()
        assert former, "its rights went before it, so that it could not give the Lease up"
    finally:
        demo.helm("install")
    assert demo.leader() in {name_of(pod) for pod in demo.operators()} - {former}, "it is ready with the Lease only"
    demo.cluster.wait(lambda: demo.looks() > 0, DEADLINE_SECONDS, "the operator has looked")
    assert demo.versions() == before
    assert demo.pods_as_they_are() == pods


def test_what_others_change_is_repaired(idle: Installed) -> None:
    """A child that was deleted, one that was edited, and one whose every annotation was replaced away."""
    before = idle.v4d(IDLE)["metadata"]["uid"]
    idle.kubectl("delete", "service", IDLE)
    grace = {"spec": {"template": {"spec": {"terminationGracePeriodSeconds": 1}}}}
    idle.kubectl("patch", "deployment", f"{IDLE}-router", "--patch", json.dumps(grace))
    policy = idle.get("configmap", f"{IDLE}-router")
    for part in ("annotations", "managedFields", "resourceVersion"):
        policy["metadata"].pop(part, None)
    policy["data"] = {}
    idle.kubectl("replace", "--filename=-", input=json.dumps(policy))
    idle.cluster.wait(
        lambda: idle.kubectl("get", "service", IDLE, check=False), DEADLINE_SECONDS, "the Service is back"
    )
    idle.cluster.wait(lambda: idle.get("configmap", f"{IDLE}-router").get("data"), DEADLINE_SECONDS, "the file is back")

    def grace_is_back() -> bool:
        pod = idle.get("deployment", f"{IDLE}-router")["spec"]["template"]["spec"]
        return bool(pod["terminationGracePeriodSeconds"] > 1)

    idle.cluster.wait(grace_is_back, DEADLINE_SECONDS, "the Deployment is as it was")
    # A V4Deployment keeps nothing in annotations that one who replaces it could lose.
    idle.kubectl("replace", "--filename=-", input=manifest(IDLE, {"model": {"demo": {}}, **_NOBODY}))
    idle.wait_for("Progressing", "Complete", IDLE)
    assert idle.v4d(IDLE)["metadata"]["uid"] == before


def test_a_router_gets_over_the_loss_of_its_service_account(demo: Installed) -> None:
    """The account is made again, but the token in the router's pod stays the former one's: it takes another pod."""
    [router] = demo.pods("router")
    demo.kubectl("delete", "serviceaccount", f"{NAME}-router")

    def replaced() -> bool:
        ready = [pod for pod in demo.pods("router") if is_ready(pod) and not is_leaving(pod)]
        return bool(ready) and name_of(router) not in map(name_of, ready)

    demo.cluster.wait(replaced, DEADLINE_SECONDS, "a new router is ready, which has found the workers")
    demo.settle()
    [fleet] = demo.fleet()
    assert (fleet["router"]["error"], len(fleet["workers"])) == ("", 2)
    assert demo.condition("Degraded")["status"] == "False"


def test_another_operator_takes_over(idle: Installed) -> None:
    idle.scale_operator(2)
    try:
        leader = idle.leader()
        assert leader in map(name_of, idle.operators())
        idle.cluster.kubectl("delete", "pod", leader, "--namespace", SYSTEM, "--wait=false")
        idle.patch({"router": {"limits": {"maxRequests": 7}}}, IDLE)
        idle.wait_for("Progressing", "Complete", IDLE)
        idle.cluster.wait(lambda: "7" in str(idle.get("configmap", f"{IDLE}-router")["data"]), 60, "the change is made")
        assert idle.leader() != leader
    finally:
        idle.scale_operator(1)


@pytest.mark.parametrize(
    ("wrong", "right", "reason", "message"),
    [
        (
            {"cache": {"slots": 500, "memoryPercent": 50}},
            {"cache": {"slots": None, "memoryPercent": None}},
            "InvalidSpec",
            "give one",
        ),
        ({"decode": {"parallel": {"tensor": 2}}}, {"decode": {"parallel": None}}, "EngineLacks", "on a single device"),
    ],
    ids=["two that exclude each other", "what the engine lacks"],
)
def test_a_spec_that_cannot_be_followed(
    demo: Installed, wrong: dict[str, Any], right: dict[str, Any], reason: str, message: str
) -> None:
    """Said in a condition where the server is too old to refuse it; what serves goes on."""
    pods = demo.pods_as_they_are()
    demo.patch(wrong)
    try:
        assert message in demo.wait_for("Degraded", reason)
        assert demo.condition("Progressing")["status"] == "False"
        assert demo.fleet()[0]["router"]["ready"]
    finally:
        demo.patch(right)
    demo.settle()
    assert demo.pods_as_they_are() == pods


def test_a_revision_that_finds_no_node_is_taken_back(demo: Installed) -> None:
    """The old one serves on, and its pods never restart."""
    pods = demo.pods_as_they_are()
    huge = {"resources": {"requests": {"cpu": "64"}}}
    demo.patch({"model": {"revision": "huge"}, "decode": huge, "rollout": {"progressDeadlineSeconds": 12}})
    demo.wait_for("Progressing", "ProgressDeadlineExceeded")
    assert "Insufficient cpu" in demo.wait_for("Degraded", "Unschedulable")
    assert "serves meanwhile" in demo.condition("Ready")["message"]
    assert demo.fleet()[0]["router"]["ready"]
    demo.reset()
    assert demo.pods_as_they_are() == pods
