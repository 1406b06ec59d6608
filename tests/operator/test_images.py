"""What the operator once chose decides about the image where the spec does not, whatever runs by now."""

from dataclasses import replace

import pytest

from tests.operator.world import Obj, World

ROLES = ("prefill", "decode", "router")
SIDECAR: Obj = {"name": "mesh", "image": "mesh:1"}


def images(world: World) -> set[str]:
    return {d["spec"]["template"]["spec"]["containers"][0]["image"] for d in world.of("Deployment")}


def test_a_new_default_is_for_new_deployments() -> None:
    world = World()
    world.settle()
    world.settings = replace(world.settings, worker_image="worker:2", router_image="router:2")
    world.settle()
    assert images(world) == {"worker:1", "router:1"}
    assert images(_settled(World(settings=world.settings))) == {"worker:2", "router:2"}


def test_the_spec_decides_where_it_says_something() -> None:
    world = _settled(World())
    world.change({"image": "worker:2", "router": {"image": "router:2"}})
    world.settle()
    assert images(world) == {"worker:2", "router:2"}
    world.change({"image": "", "router": {"image": ""}})
    world.settle()
    assert images(world) == {"worker:2", "router:2"}


def test_taking_an_image_back_leads_to_the_pods_that_were_there() -> None:
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
def test_an_image_that_was_set_by_hand_is_taken_back(role: str) -> None:
    world = _settled(World())
    revisions, before = world.revisions(), containers(world, role)[0]["image"]
    containers(world, role)[0]["image"] = "foreign:1"
    world.settle()
    assert world.revisions() == revisions
    assert containers(world, role)[0]["image"] == before
    assert world.status["image"] == "worker:1"


@pytest.mark.parametrize("remembered", [True, False])
@pytest.mark.parametrize("role", ROLES)
def test_the_image_of_a_container_that_others_put_first_is_nobodys(role: str, remembered: bool) -> None:
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
def test_an_image_that_came_with_a_replaced_deployment_is_taken_back(role: str) -> None:
    """`kubectl replace` takes the operator's annotations away as well; the last good spec still knows."""
    world = _settled(World())
    revisions, before = world.revisions(), containers(world, role)[0]["image"]
    deployment(world, role)["metadata"]["annotations"] = {}
    containers(world, role)[0]["image"] = "foreign:1"
    world.settle()
    assert world.revisions() == revisions
    assert containers(world, role)[0]["image"] == before


def test_what_an_operator_without_a_memory_made_goes_on_as_it_is() -> None:
    world = _settled(World())
    _forget(world)
    world.settings = replace(world.settings, worker_image="worker:2", router_image="router:2")
    pods = {pod["metadata"]["name"] for pod in world.of("Pod")}
    world.settle()
    assert images(world) == {"worker:1", "router:1"}
    assert {pod["metadata"]["name"] for pod in world.of("Pod")} == pods


def test_deployments_that_were_deleted_come_back_with_their_images() -> None:
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
