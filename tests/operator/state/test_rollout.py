"""Sizes of revisions during a change: single decisions by table, and whole changes by simulation."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.operator.world import World
from v4_operator.spec.size import Size
from v4_operator.state.rollout import RevisionState, Wish, best, complete, outage, targets


def serving(revision: str, prefill: int, decode: int, made: str = "1") -> RevisionState:
    size = Size(prefill, decode)
    return RevisionState(revision, size, size, size, probed=True, settled=True, made=made)


def starting(revision: str, prefill: int, decode: int, made: str = "2") -> RevisionState:
    size = Size(prefill, decode)
    return RevisionState(revision, size, pods=size, made=made)


NEW = RevisionState("new")
TABLE: dict[str, tuple[Wish, RevisionState, list[RevisionState], dict[str, Size]]] = {
    "the first revision comes up whole": (Wish(Size(2, 3)), NEW, [], {"new": Size(2, 3)}),
    "zero is a size": (Wish(Size(0, 0)), NEW, [], {"new": Size(0, 0)}),
    "a scale is nothing but another size": (Wish(Size(1, 5)), serving("new", 1, 2), [], {"new": Size(1, 5)}),
    "surge: whole beside the old": (
        Wish(Size(2, 3)), NEW, [serving("old", 2, 3)], {"new": Size(2, 3), "old": Size(2, 3)},
    ),
    "surge: ready but not probed is not enough": (
        Wish(Size(1, 1)), RevisionState("new", Size(1, 1), Size(1, 1), Size(1, 1)), [serving("old", 1, 1)],
        {"new": Size(1, 1), "old": Size(1, 1)},
    ),
    "surge: ready and probed ends the old, its decode workers last": (
        Wish(Size(1, 2)), serving("new", 1, 2), [serving("old", 1, 2)], {"new": Size(1, 2), "old": Size(0, 2)},
    ),
    "surge: decode workers go once the prefill pods are gone": (
        Wish(Size(1, 2)), serving("new", 1, 2), [RevisionState("old", Size(0, 2), Size(0, 2), Size(0, 2))],
        {"new": Size(1, 2)},
    ),
    "pairs go at once, since both workers are of one pod": (
        Wish(Size(2, 2)), serving("new", 2, 2), [replace(serving("old", 2, 2), paired=True)], {"new": Size(2, 2)},
    ),
    "surge: a smaller size counts for the old as well": (
        Wish(Size(1, 1)), starting("new", 2, 3), [serving("old", 2, 3)], {"new": Size(1, 1), "old": Size(1, 1)},
    ),
    "surge: a larger size is for the new": (
        Wish(Size(2, 4)), starting("new", 2, 2), [serving("old", 2, 2)], {"new": Size(2, 4), "old": Size(2, 2)},
    ),
    "surge: the old grows where the new is stuck": (
        Wish(Size(2, 4), stalled=True), starting("new", 2, 2), [serving("old", 2, 2)],
        {"new": Size(2, 4), "old": Size(2, 4)},
    ),
    "a third revision removes the middle one": (
        Wish(Size(1, 1)), NEW, [serving("old", 1, 1), starting("middle", 1, 1)],
        {"new": Size(1, 1), "old": Size(1, 1), "middle": Size(0, 1)},
    ),
    "what never served is not kept": (
        Wish(Size(1, 1)), NEW, [RevisionState("old", Size(1, 1))], {"new": Size(1, 1)},
    ),
    "what served once is kept though it is not ready now": (
        Wish(Size(1, 1)), NEW, [RevisionState("old", Size(1, 1), settled=True)], {"new": Size(1, 1), "old": Size(1, 1)},
    ),
    "a revert: what is complete takes over at once": (
        Wish(Size(2, 2)), serving("old", 2, 2), [starting("new", 2, 2)], {"old": Size(2, 2), "new": Size(0, 2)},
    ),
    "without a model only the old one lives": (
        Wish(Size(1, 2), startable=False), NEW, [serving("old", 1, 1), starting("middle", 1, 1)],
        {"old": Size(1, 2), "middle": Size(0, 1)},
    ),
    "replace: the first stage makes room": (
        Wish(Size(2, 4), replace=True), NEW, [serving("old", 2, 4)], {"new": Size(0, 0), "old": Size(1, 2)},
    ),
    "replace: a stage is the nearest number of each role": (
        Wish(Size(3, 5), replace=True), NEW, [serving("old", 3, 5)], {"new": Size(0, 0), "old": Size(2, 3)},
    ),
    "replace: the room is taken once it is free": (
        Wish(Size(2, 4), replace=True), RevisionState("new"), [serving("old", 1, 2)],
        {"new": Size(1, 2), "old": Size(1, 2)},
    ),
    "replace: a stage waits for its probe": (
        Wish(Size(2, 4), replace=True), starting("new", 1, 2), [serving("old", 1, 2)],
        {"new": Size(1, 2), "old": Size(1, 2)},
    ),
    "replace: the last stage ends the old": (
        Wish(Size(2, 4), replace=True), serving("new", 1, 2), [serving("old", 1, 2)],
        {"new": Size(1, 2), "old": Size(0, 2)},
    ),
    "replace: nothing grows while the last old workers end": (
        Wish(Size(2, 4), replace=True), serving("new", 1, 2), [RevisionState("old", pods=Size(1, 1))],
        {"new": Size(1, 3)},
    ),
    "replace: room beyond the stage is used": (
        Wish(Size(4, 4), replace=True), NEW, [serving("old", 1, 1)], {"new": Size(3, 3), "old": Size(1, 1)},
    ),
    "replace: one worker of a role means that the old one goes first": (
        Wish(Size(1, 3), replace=True), NEW, [serving("old", 1, 3)],
        {"new": Size(0, 0), "old": Size(0, 3)},
    ),
    "replace: then the new one comes": (Wish(Size(1, 3), replace=True), NEW, [], {"new": Size(1, 3)}),
    "replace: a smaller size does not end what serves": (
        Wish(Size(2, 2), replace=True), starting("new", 2, 2), [serving("old", 2, 2)],
        {"new": Size(1, 1), "old": Size(1, 1)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_targets(case: str) -> None:
    wish, current, olds, expected = TABLE[case]
    assert targets(wish, current, olds) == expected


def test_the_best_old_revision_is_the_one_that_serves_most() -> None:
    assert best([]) is None
    assert best([serving("a", 1, 1), serving("b", 2, 2)]) == serving("b", 2, 2)
    assert best([serving("a", 1, 1, made="2"), serving("b", 1, 1, made="1")]) == serving("b", 1, 1, made="1")
    unprobed = RevisionState("b", Size(3, 3), Size(3, 3), Size(3, 3))
    assert best([unprobed, serving("a", 1, 1)]) == serving("a", 1, 1)


def test_complete_needs_no_probe_of_what_cannot_be_probed() -> None:
    assert complete(Size(0, 2), RevisionState("a", ready=Size(0, 2)))
    assert not complete(Size(1, 2), RevisionState("a", ready=Size(1, 2)))


@pytest.mark.parametrize(
    ("prefill", "decode", "replace", "expected"),
    [(1, 1, True, True), (1, 4, True, True), (2, 4, True, False), (1, 1, False, False)],
)
def test_outage_is_known_beforehand(prefill: int, decode: int, replace: bool, expected: bool) -> None:
    assert outage(Wish(Size(prefill, decode), replace)) is expected


@given(st.integers(2, 12), st.integers(2, 12))
def test_replace_goes_to_its_end_and_keeps_pairs_on_both_sides(prefill: int, decode: int) -> None:
    """Each pool's workers appear and end at once; what is counted is only what was asked for."""
    wish = Wish(Size(prefill, decode), replace=True)
    old, new = serving("old", prefill, decode), RevisionState("new")
    for _ in range(4 * (prefill + decode)):
        sizes = targets(wish, new, [old] if old.asked != Size(0, 0) else [])
        asked_old, asked_new = sizes.get("old", Size(0, 0)), sizes["new"]
        assert wish.size.covers(asked_old.plus(asked_new))
        assert asked_old.pairs or not asked_old.prefill
        assert asked_new.pairs or asked_new == Size(0, 0)
        assert asked_old.pairs + new.ready.pairs >= min(prefill, decode) - 1 - max(prefill, decode) // min(
            prefill, decode
        )
        if asked_new == wish.size and not asked_old.pairs:
            return
        old, new = serving("old", *asked_old), serving("new", *asked_new)
    raise AssertionError(f"still at {old.asked} and {new.asked}")


SIZES = st.tuples(st.integers(0, 3), st.integers(0, 3))
WHOLE_SIZES = st.tuples(st.integers(1, 4), st.integers(1, 4))
CHANGE = st.tuples(st.just("change"), st.tuples(st.sampled_from("abc"), st.sampled_from(["", "broken", "unprobed"])))
DISTURBANCE = st.one_of(
    st.tuples(st.just("size"), SIZES),
    st.tuples(st.just("room"), st.integers(0, 8)),
    st.tuples(st.just("mute"), st.booleans()),
    st.tuples(st.just("kill"), st.integers(0, 5)),
    st.tuples(st.just("resources"), st.sampled_from(("100m", "200m"))),
)
WAIT = st.tuples(st.just("wait"), st.integers(1, 9))
ROUND = st.tuples(CHANGE, WAIT, st.lists(DISTURBANCE, max_size=2), WAIT)


def resize(world: World, prefill: int, decode: int) -> None:
    """Another size for both pools."""
    world.change({"prefill": {"replicas": prefill}, "decode": {"replicas": decode}})


def act(world: World, action: tuple[str, Any]) -> int:
    """Do what was drawn; the seconds to let pass."""
    kind, value = action
    if kind == "change":
        world.change({"model": {"revision": value[0]}})
        revision = world.desired_state().status["revision"]
        world.broken, world.unprobed = world.broken - {revision}, world.unprobed - {revision}
        {"broken": world.broken, "unprobed": world.unprobed}.get(value[1], set()).add(revision)
    elif kind == "size":
        resize(world, *value)
    elif kind == "room":
        world.room = value
    elif kind == "mute":
        world.routers_answer = not value
    elif kind == "kill":
        for pod in world.pods()[value : value + 1]:
            world.kill(pod)
    elif kind == "resources":
        world.change({"decode": {"resources": {"requests": {"cpu": value}}}})
    return int(value) if kind == "wait" else 1


def serving_pairs(world: World, asked: dict[str, int] | None = None) -> int:
    """Ready pairs of the revision that has most, as far as they are still asked for."""

    def pairs(revision: str) -> int:
        deployments = [d for d in world.of("Deployment") if d["metadata"]["name"].endswith(revision)]
        counted = world.ready_pairs(revision)
        sizes = [(asked or {}).get(d["metadata"]["name"], 0 if asked is not None else counted) for d in deployments]
        return min([counted, *sizes])

    known = [revision for revision in world.revisions() if not world.fleets() or world.probed(revision)]
    return max((pairs(revision) for revision in known), default=0)


def check_step(world: World, replace: bool) -> None:
    """One reconcile, and what must hold of the stage that it takes."""
    before, asked_before = serving_pairs(world), world.sizes()
    made = world.desired_state()
    asked = {
        obj["metadata"]["name"]: obj["spec"]["replicas"]
        for obj in made.objects
        if obj["kind"] == "Deployment" and obj["metadata"]["name"] != "demo-router"
    }
    spec = world.v4d.spec
    desired = {"prefill": spec.prefill.replicas, "decode": spec.decode.replicas}
    if replace:
        current = made.status["revision"]
        for role, size in desired.items():
            of_role = {name: asked[name] for name in asked if f"-{role}-" in name}
            assert sum(of_role.values()) <= size
            name = f"demo-{role}-{current}"
            others = [pod for pod in world.pods(role=role) if current not in pod["metadata"]["name"]]
            if asked[name] > asked_before.get(name, 0):
                assert asked[name] + len(others) <= size
        if min(desired.values()) >= 2:
            olds = {n.rpartition("-")[2] for n in asked} - {current}
            # No prefill worker is left without a decode worker of its revision; the other way round ends a revision.
            assert all(asked[f"demo-decode-{old}"] for old in olds if before)
    else:
        assert serving_pairs(world, asked) >= min(before, *desired.values())
    world.reconcile()


@pytest.mark.parametrize("strategy", ["Surge", "Replace"])
def test_whatever_happens_serving_goes_on_and_every_change_ends(strategy: str) -> None:
    @settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(WHOLE_SIZES, st.lists(ROUND, min_size=1, max_size=4))
    def run(size: tuple[int, int], rounds: list[tuple[Any, Any, list[Any], Any]]) -> None:
        world = World({"rollout": {"strategy": strategy, "drainSeconds": 4}})
        resize(world, *size)
        world.settle()
        for action in (action for change, wait, others, rest in rounds for action in (change, wait, *others, rest)):
            for _ in range(act(world, action)):
                check_step(world, strategy == "Replace")
                world.tick()
        world.broken, world.unprobed, world.room, world.routers_answer = set(), set(), None, True
        resize(world, 2, 3)
        made = world.settle(400)
        world.tick(world.drain_seconds + 1)
        assert world.sizes() == dict(zip(sorted(world.sizes()), (3, 2), strict=True))
        assert world.revisions() == [made.status["revision"]]
        assert {pod["metadata"]["labels"]["v4serve.dev/revision"] for pod in world.pods()} == {made.status["revision"]}
        assert world.condition("Ready")["status"] == "True"
        writes = world.writes
        world.reconcile()
        assert world.writes == writes

    run()


def test_a_revert_in_the_middle_restarts_nothing() -> None:
    world = World({"prefill": {"replicas": 2}, "decode": {"replicas": 2}})
    world.settle()
    pods = {pod["metadata"]["name"] for pod in world.pods()}
    world.room = 4
    world.change({"model": {"revision": "b"}})
    for _ in range(5):
        world.reconcile()
        world.tick()
    assert len(world.revisions()) == 2
    world.change({"model": {"revision": ""}})
    world.settle()
    world.tick(world.drain_seconds + 1)
    assert {pod["metadata"]["name"] for pod in world.pods()} == pods


def test_what_finds_no_node_misses_its_deadline_and_the_old_revision_serves_on() -> None:
    world = World({"rollout": {"progressDeadlineSeconds": 60, "drainSeconds": 4}})
    first = world.settle().status["revision"]
    world.room = 2
    world.change({"model": {"revision": "b"}})
    made = world.settle(200)
    progressing, ready, degraded = map(world.condition, ("Progressing", "Ready", "Degraded"))
    assert (progressing["status"], progressing["reason"]) == ("False", "ProgressDeadlineExceeded")
    assert ready["status"] == "False"
    assert f"revision {first} serves meanwhile" in ready["message"]
    assert degraded["reason"] == "Unschedulable"
    assert "Insufficient cpu" in degraded["message"]
    assert world.ready_pairs(first) == 1
    assert made.requeue_seconds == 15
    world.change({"decode": {"replicas": 2}})
    world.room = 3
    world.reconcile()
    assert world.sizes()[f"demo-decode-{first}"] == 2
    world.room = None
    world.settle()
    assert first not in world.revisions()
    assert world.condition("Ready")["status"] == "True"


@pytest.mark.parametrize("strategy", ["Surge", "Replace"])
def test_without_routers_a_change_ends_too_since_nobody_can_probe(strategy: str) -> None:
    world = World({"router": {"replicas": 0}, "rollout": {"strategy": strategy, "drainSeconds": 4}})
    first = world.settle().status["revision"]
    world.change({"model": {"revision": "b"}})
    world.settle()
    world.tick(2000)
    world.reconcile()
    assert first not in world.revisions()
    assert world.condition("Progressing")["reason"] == "Complete"
    assert world.condition("Degraded")["reason"] == "AsExpected", "none is late who is not asked for"


def test_an_old_revision_stays_until_every_ready_router_has_said_that_it_knows_the_new_one() -> None:
    world = World({"router": {"replicas": 2}})
    first = world.settle().status["revision"]
    world.silent_routers = 1
    world.change({"model": {"revision": "b"}})
    for _ in range(30):
        world.reconcile()
        world.tick()
    assert world.ready_pairs(first) == 1
    world.silent_routers = 0
    world.settle()
    assert first not in world.revisions()


@pytest.mark.parametrize(
    ("change", "kept"),
    [({"model": {"revision": "b"}}, False), ({"decode": {"resources": {"requests": {"cpu": "2"}}}}, True)],
)
def test_replace_with_one_of_each_states_the_outage(change: dict[str, Any], kept: bool) -> None:
    """Of a revision, and of pods alone."""
    world = World({"rollout": {"strategy": "Replace", "drainSeconds": 4}})
    first = world.settle().status["revision"]
    world.change(change)
    seen = []
    for _ in range(20):
        world.reconcile()
        seen.append((world.condition("Progressing")["reason"], world.condition("Ready")["status"]))
        assert len(world.pods()) <= 2 + kept, "a Deployment's own controller does not wait for the pod that ends"
        world.tick()
    assert ("Outage", "False") in seen
    assert seen.index(("Complete", "True")) > max(i for i, state in enumerate(seen) if state[0] == "Outage")
    assert (first in world.revisions()) is kept


def test_an_old_revision_in_the_middle_of_a_change_of_its_pods_is_kept_though_none_is_ready() -> None:
    """Its controller no longer says that it was complete, once the template has changed."""
    world = World({"rollout": {"drainSeconds": 4}})
    first = world.settle().status["revision"]
    world.change({"decode": {"resources": {"requests": {"cpu": "2"}}}})
    world.start_seconds = 1000
    for _ in range(3):
        world.reconcile()
        world.tick()
    for pod in world.pods(role="decode"):
        world.kill(pod)  # its node dies
    world.tick()
    (decode,) = [d for d in world.of("Deployment") if d["metadata"]["name"] == f"demo-decode-{first}"]
    assert decode["status"]["conditions"][0]["reason"] != "NewReplicaSetAvailable"
    assert (world.ready_pairs(first), len(world.pods(role="decode"))) == (0, 1)
    world.change({"model": {"revision": "b"}})
    second = world.desired_state().status["revision"]
    for _ in range(5):
        world.reconcile()
        assert world.sizes() == {f"demo-{role}-{each}": 1 for role in ("prefill", "decode") for each in (first, second)}
        world.tick()
    world.start_seconds = 3
    world.settle()
    assert world.revisions() == [second]


def test_a_change_of_placement_is_a_new_revision() -> None:
    world = World({"prefill": {"replicas": 2}, "decode": {"replicas": 2}})
    world.settle()
    world.change({"placement": "shared"})
    made = world.settle()
    assert world.sizes() == {f"demo-pair-{made.status['revision']}": 2}
    assert made.status["decode"]["summary"] == "2/2"
    assert world.condition("Ready")["status"] == "True"


def test_an_outage_is_told_by_an_operator_that_comes_while_one_kind_of_old_pods_is_gone() -> None:
    """A prefill worker without requests goes at once, a decode worker ends its streams first."""
    world = World({"rollout": {"strategy": "Replace", "drainSeconds": 9}})
    first = world.settle().status["revision"]
    before = dict(world.status)
    world.change({"model": {"revision": "b"}})
    world.reconcile()
    for pod in world.of("Pod"):
        labels = pod["metadata"]["labels"]
        if (labels.get("v4serve.dev/revision"), labels["v4serve.dev/role"]) == (first, "prefill"):
            del world.objects["Pod", pod["metadata"]["name"]]
    world.status = before  # as an operator left it that ended before it wrote its own
    world.reconcile()
    assert world.condition("Progressing")["reason"] == "Outage"
