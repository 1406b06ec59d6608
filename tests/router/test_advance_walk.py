"""Random walks of the state machine over all of its events, against a model of workers."""

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.router.walk import World
from v4_router.group_ends import MAX_TRIES


def walk(seed: int, chaos: int) -> World:
    """So many steps in which anything may happen, then steps without a failure until nothing happens any more."""
    chance = Random(seed)
    world = World(chance)
    for _ in range(chaos):
        if chance.random() < 0.005:
            world.close()
        if not world.groups:
            break
        world.step()
    world.fair = True
    world.alive |= {"P0", "P1", "D0", "D1", "D2"}
    steps = 0
    while world.step():
        steps += 1
        assert steps < 2000, "it does not end"
    world.check_end()
    return world


@settings(max_examples=500, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), chaos=st.integers(0, 150))
def test_every_walk_ends_and_leaves_nothing_behind(seed: int, chaos: int) -> None:
    walk(seed, chaos)


@settings(max_examples=100, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_without_progress_the_tries_are_bounded(seed: int) -> None:
    """Of each choice, since each may continue alone."""
    world = World(Random(seed), hostile=True)
    while world.groups and world.step():
        assert len(world.legs) <= 2 * (MAX_TRIES + 1) * (len(world.outputs) + 1)
    assert not world.groups


def test_the_walks_reach_every_kind_of_transition() -> None:
    """What the walks above cannot reach, they do not prove."""
    seen: Counter[str] = Counter()
    ends: Counter[bool] = Counter()
    for seed in range(400):
        world = walk(seed, 120)
        seen += world.seen
        ends[world.failed] += 1
    expected = {
        "Begin -> Place", "Placed -> StartLeg", "NotPlaced -> Place", "NotPlaced -> SetTimer", "NotPlaced -> Fail",
        "Started -> LegBegan", "Started -> CorrectPrefix", "Started -> FindPartner", "PartnerFound -> StartLeg",
        "NoPartner -> Place", "Tokens -> EmitTokens", "Tokens -> Split", "Tokens -> Done", "Adopted -> RecordTransfer",
        "Adopted -> LeaveQueue", "Failed -> WaitForRoom", "Failed -> SetTimer", "Failed -> FindPartner",
        "Failed -> Place", "Failed -> Split", "Failed -> HoldPlace", "Failed -> Fail", "TimerFired -> Place",
        "TimerFired -> FindPartner", "RoomGranted -> StartLeg", "NoRoomLeft -> HoldPlace", "ChoiceFinished -> Done",
        "Closed -> DropLeg", "Closed -> LeaveQueue",
    }  # fmt: skip
    assert expected - seen.keys() == set()
    assert min(ends[True], ends[False]) > 20
