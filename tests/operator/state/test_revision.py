"""Which change of the spec restarts what, as the rendered templates show it, and which images are run.

What the operator once chose decides about the image where the spec does not, whatever runs by now.
"""

from dataclasses import replace
from typing import Any

import pytest

from tests.operator.world import SETTINGS, Obj, World, merged, parent
from v4_core.kubernetes import REVISION_LABEL
from v4_operator.desired import desired_state
from v4_operator.observed.live import Observed
from v4_operator.spec.v4deployment import Spec
from v4_operator.state.revision import revision

DEMO: Obj = {"model": {"demo": {}}}
PVC: Obj = {"model": {"pvc": {"claimName": "weights"}}}

ROLES = ("prefill", "decode", "router")
SIDECAR: Obj = {"name": "mesh", "image": "mesh:1"}

CLASSES: list[tuple[str, Obj, Obj]] = [
    ("exchange", {}, {"image": "worker:2"}),
    ("exchange", {}, {"model": {"revision": "2"}}),
    ("exchange", PVC, {"model": {"pvc": {"claimName": "others"}}}),
    ("exchange", PVC, {"model": {"pvc": {"path": "flash"}}}),
    ("exchange", {}, {"cache": {"format": "bf16"}}),
    ("exchange", {}, {"cache": {"indexFormat": "bf16"}}),
    ("exchange", {}, {"placement": "shared"}),
    ("pod", {}, {"model": {"contextLength": 4096}}),
    ("pod", {}, {"cache": {"memoryPercent": 40}}),
    ("pod", {}, {"cache": {"maxSequences": 8}}),
    ("pod", {}, {"decode": {"resources": {"requests": {"cpu": "2"}}}}),
    ("pod", {}, {"decode": {"pod": {"env": [{"name": "A", "value": "1"}]}}}),
    ("pod", {}, {"prefill": {"pod": {"labels": {"team": "a"}}}}),
    ("pod", {}, {"transfer": {"leaseSeconds": 60}}),
    ("pod", {}, {"rollout": {"drainSeconds": 60}}),
    ("none", {}, {"model": {"servedName": "other"}}),
    ("none", {}, {"prefill": {"replicas": 3}, "decode": {"replicas": 0}}),
    ("none", {}, {"router": {"limits": {"maxRequests": 9}}}),
    ("none", {}, {"router": {"replicas": 2, "image": "router:2"}}),
    ("none", {}, {"transfer": {"onFailure": "fail"}}),
    ("none", {}, {"rollout": {"strategy": "Replace"}}),
    ("none", {}, {"networkPolicy": {"scrapeFrom": [{"podSelector": {}}]}}),
]


def workers(spec: Obj) -> dict[str, Any]:
    """Templates of worker Deployments by name."""
    made = desired_state(parent(spec), Observed(World().now), SETTINGS)
    found = [obj for obj in made.objects if obj["kind"] == "Deployment"]
    return {d["metadata"]["name"]: d["spec"]["template"] for d in found if REVISION_LABEL in d["metadata"]["labels"]}


def change_class(before: dict[str, Any], after: dict[str, Any]) -> str:
    if before.keys() != after.keys():
        assert not before.keys() & after.keys(), "both pools get a new revision, or none"
        return "exchange"
    return "none" if before == after else "pod"


@pytest.mark.parametrize(("expected", "base", "change"), CLASSES, ids=[f"{c[0]}-{c[2]}" for c in CLASSES])
def test_class_of_a_change(expected: str, base: Obj, change: Obj) -> None:
    assert change_class(workers(base or DEMO), workers(merged(base or DEMO, change))) == expected


def test_a_pod_change_of_one_pool_leaves_the_other_alone() -> None:
    before, after = workers({}), workers({"decode": {"resources": {"requests": {"cpu": "2"}}}})
    assert [name for name in before if before[name] != after[name]] == [name for name in before if "decode" in name]


def test_labels_and_defaults_of_the_operator_restart_nothing() -> None:
    world = World()
    world.settle()
    pods = {pod["metadata"]["name"] for pod in world.of("Pod")}
    world.settings = replace(
        world.settings, common_labels={"team": "a"}, worker_image="worker:9", router_image="router:9"
    )
    made = world.settle()
    assert {pod["metadata"]["name"] for pod in world.of("Pod")} == pods
    assert made.status["image"] == "worker:1"
    assert world.get("Service", "demo")["metadata"]["labels"]["team"] == "a"


def test_a_revision_is_ten_digits_and_stable() -> None:
    """A change of this value restarts the workers of everyone who upgrades the operator."""
    assert revision(Spec(), "worker:1") == "cc95b2e006"


def images(world: World) -> set[str]:
    return {d["spec"]["template"]["spec"]["containers"][0]["image"] for d in world.of("Deployment")}


def test_a_new_default_image_is_used_for_new_deployments_only() -> None:
    world = World()
    world.settle()
    world.settings = replace(world.settings, worker_image="worker:2", router_image="router:2")
    world.settle()
    assert images(world) == {"worker:1", "router:1"}
    assert images(_settled(World(settings=world.settings))) == {"worker:2", "router:2"}


def test_an_image_in_the_spec_decides() -> None:
    world = _settled(World())
    world.change({"image": "worker:2", "router": {"image": "router:2"}})
    world.settle()
    assert images(world) == {"worker:2", "router:2"}
    world.change({"image": "", "router": {"image": ""}})
    world.settle()
    assert images(world) == {"worker:2", "router:2"}


def test_reverting_an_image_keeps_the_former_pods() -> None:
    world = World()
    first = world.settle().status["revision"]
    world.change({"image": "worker:2"})
    world.reconcile()
    world.tick()
    world.settings = replace(world.settings, worker_image="worker:3")
    world.change({"image": ""})
    assert world.settle().status["revision"] == first


def deployment(world: World, role: str) -> Obj:
    (found,) = (d for d in world.of("Deployment") if d["metadata"]["labels"]["v4serve.dev/role"] == role)
    return found


def containers(world: World, role: str) -> list[Obj]:
    found: list[Obj] = deployment(world, role)["spec"]["template"]["spec"]["containers"]
    return found


@pytest.mark.parametrize("role", ROLES)
def test_an_image_that_was_set_by_hand_is_reverted(role: str) -> None:
    world = _settled(World())
    revisions, before = world.revisions(), containers(world, role)[0]["image"]
    containers(world, role)[0]["image"] = "foreign:1"
    world.settle()
    assert world.revisions() == revisions
    assert containers(world, role)[0]["image"] == before
    assert world.status["image"] == "worker:1"


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("role", ROLES)
def test_the_image_of_an_injected_first_container_is_not_used(role: str, remembered: bool) -> None:
    world = _settled(World())
    revisions = world.revisions()
    if not remembered:  # as an operator left it that had no memory
        _forget(world)
    containers(world, role).insert(0, SIDECAR)
    world.settle()
    assert world.revisions() == revisions
    assert sorted(each["image"] for each in containers(world, role)) == sorted(
        ["mesh:1", "router:1" if role == "router" else "worker:1"]
    )


@pytest.mark.parametrize("role", ROLES)
def test_the_image_of_a_replaced_deployment_is_reverted(role: str) -> None:
    """`kubectl replace` takes the operator's annotations away as well; the last good spec still knows."""
    world = _settled(World())
    revisions, before = world.revisions(), containers(world, role)[0]["image"]
    deployment(world, role)["metadata"]["annotations"] = {}
    containers(world, role)[0]["image"] = "foreign:1"
    world.settle()
    assert world.revisions() == revisions
    assert containers(world, role)[0]["image"] == before


def test_deployments_of_an_operator_that_stored_no_spec_stay_unchanged() -> None:
    world = _settled(World())
    _forget(world)
    world.settings = replace(world.settings, worker_image="worker:2", router_image="router:2")
    pods = {pod["metadata"]["name"] for pod in world.of("Pod")}
    world.settle()
    assert images(world) == {"worker:1", "router:1"}
    assert {pod["metadata"]["name"] for pod in world.of("Pod")} == pods


def test_deleted_deployments_are_recreated_with_their_images() -> None:
    world = _settled(World())
    revisions = world.revisions()
    world.settings = replace(world.settings, worker_image="worker:2", router_image="router:2")
    for found in world.of("Deployment"):
        del world.objects["Deployment", found["metadata"]["name"]]
    world.settle()
    assert world.revisions() == revisions
    assert images(world) == {"worker:1", "router:1"}


def test_a_router_that_was_rolled_back_by_hand_follows_the_spec_again() -> None:
    """`kubectl rollout undo` brings back the annotations of former pods too."""
    world = _settled(World())
    former = {key: deployment(world, "router")[key] for key in ("metadata", "spec")}
    world.change({"router": {"image": "router:2"}})
    world.settle()
    world.change({"router": {"image": ""}})
    world.settle()
    deployment(world, "router")["metadata"]["annotations"] = former["metadata"]["annotations"]
    deployment(world, "router")["spec"] = former["spec"]
    world.settle()
    assert containers(world, "router")[0]["image"] == "router:2"


def _forget(world: World) -> None:
    for obj in list(world.objects.values()):
        obj["metadata"].get("annotations", {}).pop("v4serve.dev/desired", None)
        if obj["kind"] == "ConfigMap" and obj.get("immutable"):
            del world.objects[obj["kind"], obj["metadata"]["name"]]


def _settled(world: World) -> World:
    world.settle()
    return world
