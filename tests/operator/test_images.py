"""What runs decides about the image where the spec does not."""

from dataclasses import replace

from tests.operator.world import World


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


def _settled(world: World) -> World:
    world.settle()
    return world
