"""Transitions of a group of choices, by tables: a state, an event, the actions, and the state after them."""

from collections.abc import Sequence
from typing import Any

import pytest

from v4_core.blocks import pack_ids
from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb
from v4_router import advance as machine
from v4_router.actions import (
    Action,
    CorrectPrefix,
    CountRecomputation,
    CountRetry,
    Done,
    DropLeg,
    EmitTokens,
    Fail,
    FindPartner,
    HoldPlace,
    LeaveQueue,
    LegBegan,
    Place,
    RecordFailure,
    RecordTransfer,
    SetTimer,
    Split,
    StartLeg,
    Timer,
    WaitForRoom,
)
from v4_router.advance import advance
from v4_router.choice_group import ChoiceGroup, Prompt, Queue, RemoteLeg
from v4_router.errors import (
    BadRequest,
    DeadlineExceeded,
    InternalError,
    Overloaded,
    RouterError,
    TransferFailed,
    Unavailable,
)
from v4_router.events import (
    LOST,
    Adopted,
    Begin,
    ChoiceFinished,
    Closed,
    Event,
    Failed,
    NoPartner,
    NoRoomLeft,
    NotPlaced,
    PartnerFound,
    Placed,
    RoomGranted,
    Started,
    TimerFired,
    Tokens,
)
from v4_router.generation import GenerationRequest
from v4_router.group_ends import MAX_TRIES
from v4_router.placement import Placement

PAIR = Placement("P", "D", "least-queued")
ALONE = Placement(None, "D", "no-prefill-worker")
PREFILL = RemoteLeg("r", 0, pb.PREFILL, "P")
DECODE = RemoteLeg("r", 0, pb.DECODE, "D")
WHOLE = RemoteLeg("r", 0, pb.WHOLE, "D")
ADOPTED = pb.Adopted(bytes=5)
NOBODY: frozenset[str] = frozenset()
LEASE = 7


def tokens(
    leg: RemoteLeg, ids: Sequence[int], start: int = 0, choice: int = 0, finish: pb.Finish = pb.NOT_FINISHED
) -> Tokens:
    return Tokens(leg, pb.Tokens(choice=choice, start=start, ids=pack_ids(ids), finish=finish))


def failed(leg: RemoteLeg, reason: int) -> Failed:
    return Failed(leg, reason, "why")


def next_attempt(leg: RemoteLeg, worker: str) -> RemoteLeg:
    return leg._replace(attempt=leg.attempt + 1, worker=worker)


# Events that lead to each state, from a new group on.
STATES: dict[str, list[Event]] = {
    "new": [],
    "placing": [Begin()],
    "prefilling": [Begin(), Placed(PAIR)],
    "prefilling a known prefix": [Begin(), Placed(PAIR, 512)],
    "alone": [Begin(), Placed(ALONE)],
    "decoding alone": [Begin(), Placed(ALONE), Started(WHOLE, 0), tokens(WHOLE, [10, 11])],
    "offering": [Begin(), Placed(PAIR), Started(PREFILL, 0, LEASE)],
    "pulling": [Begin(), Placed(PAIR), Started(PREFILL, 0, LEASE), PartnerFound("D")],
}
STATES |= {
    "pulling, first token known": [*STATES["pulling"], tokens(PREFILL, [10])],
    "pulling again soon": [*STATES["pulling"], failed(DECODE, pb.TRANSFER)],
    "waiting": [*STATES["pulling"], failed(DECODE, pb.OVERLOADED)],
    "adopted": [*STATES["pulling"], Adopted(DECODE, ADOPTED)],
}
STATES |= {
    "waiting, first token known": [*STATES["pulling, first token known"], failed(DECODE, pb.OVERLOADED)],
    "called": [*STATES["waiting"], RoomGranted("E")],
    "held": [*STATES["waiting"], failed(PREFILL, pb.TRANSFER)],
    "decoding": [*STATES["adopted"], tokens(PREFILL, [10]), tokens(DECODE, [11], 1)],
    "refused": [*STATES["prefilling"], failed(PREFILL, pb.INTERNAL)],
    "failed": [*STATES["prefilling"], failed(PREFILL, LOST)],
    "over": [*STATES["pulling"], Closed()],
}
CALLED = next_attempt(DECODE, "E")


def group_in(state: str, *, choices: int = 1, most: int = 9) -> ChoiceGroup:
    request = GenerationRequest("r", pack_ids(range(300)), choices, most, Sampling(), 0.0)
    group = ChoiceGroup(Prompt(request), "r", tuple(range(choices)))
    for event in STATES[state]:
        advance(group, event)
    return group


CASES: list[tuple[str, Event, list[Action], dict[str, Any]]] = [
    # placing
    ("new", Begin(), [Place(NOBODY)], {"attempt": -1}),
    ("placing", Placed(PAIR, 512), [StartLeg(PREFILL, 0, placement=PAIR)], {"prefill": PREFILL, "attempt": 0}),
    ("placing", Placed(PAIR, 256), [StartLeg(PREFILL, 44, placement=PAIR)], {"cached_guess": 256}),
    ("placing", Placed(ALONE), [StartLeg(WHOLE, 300, placement=ALONE)], {"decode": WHOLE, "prefill": None}),
    ("placing", NotPlaced(), [Done(), Fail(None)], {"over": True}),
    ("failed", NotPlaced(), [Place(NOBODY)], {"failed": set()}),
    # prefill
    ("prefilling", Started(PREFILL, 0, LEASE), [LegBegan(PREFILL, 0), FindPartner(PREFILL, NOBODY)], {"lease": LEASE}),
    (
        "prefilling a known prefix",
        Started(PREFILL, 256, LEASE),
        [LegBegan(PREFILL, 256), CorrectPrefix(PREFILL, 1), FindPartner(PREFILL, NOBODY)],
        {},
    ),
    ("alone", Started(WHOLE, 256), [LegBegan(WHOLE, 256)], {}),
    ("pulling", Started(PREFILL, 0, LEASE), [LegBegan(PREFILL, 0)], {"decode": DECODE}),
    ("waiting", Started(PREFILL, 0, LEASE), [LegBegan(PREFILL, 0)], {"queue": Queue.WAITING}),
    ("pulling", Started(DECODE, 0), [], {}),
    ("prefilling", tokens(PREFILL, [10]), [EmitTokens(PREFILL, 0, [10], [])], {}),
    (
        "prefilling",
        tokens(PREFILL, [10], finish=pb.STOP),
        [EmitTokens(PREFILL, 0, [10], [], "stop"), DropLeg(PREFILL, 0), Done()],
        {"over": True},
    ),
    # the pull
    ("offering", PartnerFound("D"), [StartLeg(DECODE, 0, source=PREFILL, lease=LEASE)], {"decode": DECODE}),
    ("offering", NoPartner(), [DropLeg(PREFILL, 0), CountRecomputation(), Place(NOBODY)], {"tries": 1}),
    ("pulling", Adopted(DECODE, ADOPTED), [RecordTransfer(DECODE, ADOPTED)], {"adopted": True}),
    ("called", Adopted(CALLED, ADOPTED), [LeaveQueue(), RecordTransfer(CALLED, ADOPTED)], {"queue": Queue.OUT}),
    ("pulling", tokens(DECODE, [11], 1), [], {}),
    ("pulling", tokens(DECODE, [12], 2), [], {}),
    # decode's tokens
    ("decoding", tokens(DECODE, [12], 2), [EmitTokens(DECODE, 0, [12], [])], {}),
    ("decoding", tokens(DECODE, [10, 11, 12], 0), [EmitTokens(DECODE, 0, [12], [])], {}),
    ("decoding", tokens(DECODE, [11], 1), [], {}),
    (
        "decoding",
        tokens(DECODE, [12], 2, finish=pb.LENGTH),
        [EmitTokens(DECODE, 0, [12], [], "length"), DropLeg(PREFILL, None), DropLeg(DECODE, None), Done()],
        {"over": True},
    ),
    (
        "decoding",
        tokens(DECODE, [], 2, finish=pb.STOP),
        [EmitTokens(DECODE, 0, [], [], "stop"), DropLeg(PREFILL, None), DropLeg(DECODE, None), Done()],
        {"over": True},
    ),
    (
        "decoding alone",
        tokens(WHOLE, [12], 2, finish=pb.STOP),
        [EmitTokens(WHOLE, 0, [12], [], "stop"), DropLeg(WHOLE, None), Done()],
        {"over": True},
    ),
    # the queue
    (
        "pulling",
        failed(DECODE, pb.OVERLOADED),
        [DropLeg(DECODE, None), RecordFailure(DECODE, pb.OVERLOADED, "why"), WaitForRoom(PREFILL)],
        {"queue": Queue.WAITING, "attempt": 1, "tries": 0, "refused": set()},
    ),
    ("waiting", RoomGranted("E"), [StartLeg(CALLED, 0, source=PREFILL, lease=LEASE)], {"queue": Queue.CALLED}),
    ("waiting", NoRoomLeft(), [HoldPlace(), FindPartner(PREFILL, NOBODY)], {"queue": Queue.CALLED}),
    ("pulling", RoomGranted("E"), [], {"decode": DECODE}),
    ("called", NoRoomLeft(), [], {"decode": CALLED}),
    (
        "called",
        failed(CALLED, pb.OVERLOADED),
        [DropLeg(CALLED, None), RecordFailure(CALLED, pb.OVERLOADED, "why"), WaitForRoom(PREFILL)],
        {"queue": Queue.WAITING, "attempt": 2},
    ),
    (
        "waiting",
        failed(PREFILL, pb.TRANSFER),
        [DropLeg(PREFILL, None), RecordFailure(PREFILL, pb.TRANSFER, "why"), HoldPlace(), CountRecomputation(),
         Place(NOBODY)],
        {"queue": Queue.HELD, "tries": 0},
    ),
    (
        "waiting",
        failed(PREFILL, LOST),
        [DropLeg(PREFILL, None), RecordFailure(PREFILL, LOST, "why"), CountRetry(PREFILL, LOST), HoldPlace(),
         CountRecomputation(), Place(frozenset({"P"}))],
        {"queue": Queue.HELD, "tries": 1},
    ),
    ("waiting", Closed(), [DropLeg(PREFILL, 1), LeaveQueue(), Done()], {"queue": Queue.OUT}),
    ("held", Closed(), [LeaveQueue(), Done()], {"queue": Queue.OUT}),
    # failures of prefill
    (
        "prefilling",
        failed(PREFILL, pb.INTERNAL),
        [DropLeg(PREFILL, None), RecordFailure(PREFILL, pb.INTERNAL, "why"), CountRetry(PREFILL, pb.INTERNAL),
         CountRecomputation(), Place(frozenset({"P"}))],
        {"refused": {"P"}, "failed": set()},
    ),
    (
        "pulling",
        failed(PREFILL, LOST),
        [DropLeg(PREFILL, None), RecordFailure(PREFILL, LOST, "why"), CountRetry(PREFILL, LOST), DropLeg(DECODE, 0),
         CountRecomputation(), Place(frozenset({"P"}))],
        {"refused": set(), "failed": {"P"}},
    ),
    (
        "decoding",
        failed(PREFILL, LOST),
        [DropLeg(PREFILL, None), RecordFailure(PREFILL, LOST, "why")],
        {"decode": DECODE, "tries": 0},
    ),
    (
        "adopted",
        failed(PREFILL, LOST),
        [DropLeg(PREFILL, None), RecordFailure(PREFILL, LOST, "why"), CountRetry(PREFILL, LOST), DropLeg(DECODE, 0),
         CountRecomputation(), Place(frozenset({"P"}))],
        {},
    ),
    # failures of decode
    (
        "pulling",
        failed(DECODE, pb.TRANSFER),
        [DropLeg(DECODE, None), RecordFailure(DECODE, pb.TRANSFER, "why"), CountRetry(DECODE, pb.TRANSFER),
         SetTimer(Timer.LAST_TOKENS, machine.LAST_TOKENS_SECONDS, PREFILL)],
        {"attempt": 1, "failed": {"D"}},
    ),
    (
        "pulling",
        failed(DECODE, pb.DRAINING),
        [DropLeg(DECODE, None), RecordFailure(DECODE, pb.DRAINING, "why"), CountRetry(DECODE, pb.DRAINING),
         FindPartner(PREFILL, frozenset({"D"}))],
        {"attempt": 1, "refused": {"D"}},
    ),
    (
        "adopted",
        failed(DECODE, LOST),
        [DropLeg(DECODE, None), RecordFailure(DECODE, LOST, "why"), CountRetry(DECODE, LOST), DropLeg(PREFILL, None),
         CountRecomputation(), Place(frozenset({"D"}))],
        {"attempt": 0},
    ),
    (
        "alone",
        failed(WHOLE, pb.OVERLOADED),
        [DropLeg(WHOLE, None), RecordFailure(WHOLE, pb.OVERLOADED, "why"), CountRetry(WHOLE, pb.OVERLOADED),
         CountRecomputation(), Place(frozenset({"D"}))],
        {"refused": {"D"}},
    ),
    # timers
    ("pulling again soon", TimerFired(Timer.LAST_TOKENS, PREFILL), [FindPartner(PREFILL, frozenset({"D"}))], {}),
    ("pulling", TimerFired(Timer.LAST_TOKENS, PREFILL), [], {}),
    ("waiting", TimerFired(Timer.LAST_TOKENS, PREFILL), [], {}),
    ("refused", TimerFired(Timer.LAST_TOKENS, PREFILL), [], {}),
    # ends
    ("pulling", ChoiceFinished(0), [DropLeg(PREFILL, 0), DropLeg(DECODE, 0), Done()], {"over": True}),
    ("decoding", ChoiceFinished(0), [DropLeg(PREFILL, None), DropLeg(DECODE, 0), Done()], {"over": True}),
    ("decoding", Closed(), [DropLeg(PREFILL, None), DropLeg(DECODE, 0), Done()], {"over": True}),
    ("over", Closed(), [], {}),
    ("over", tokens(PREFILL, [10]), [], {}),
    # events of legs that were dropped
    ("failed", failed(PREFILL, LOST), [], {"tries": 1}),
    ("called", failed(DECODE, LOST), [], {"decode": CALLED}),
    ("called", tokens(DECODE, [11], 1), [], {}),
]  # fmt: skip


@pytest.mark.parametrize(("state", "event", "expected", "after"), CASES)
def test_transition(state: str, event: Event, expected: list[Action], after: dict[str, Any]) -> None:
    group = group_in(state)
    assert advance(group, event) == expected
    assert {name: getattr(group, name) for name in after} == after


FATAL: list[tuple[str, Event, type[RouterError], str]] = [
    ("pulling", failed(PREFILL, pb.INVALID), BadRequest, "why"),
    ("pulling", failed(DECODE, pb.DEADLINE), DeadlineExceeded, "why"),
    ("decoding", failed(PREFILL, pb.INVALID), BadRequest, "why"),
    ("pulling", Failed(DECODE, pb.TRANSFER, "why", recompute=False), TransferFailed, "why"),
    ("decoding", tokens(DECODE, [13], 3), InternalError, "tokens 2 to 3 of a choice are missing"),
    ("prefilling", tokens(PREFILL, [11], 1), InternalError, "tokens 0 to 1 of a choice are missing"),
    ("decoding", tokens(DECODE, [12], 2, choice=1), InternalError, "tokens of choice 1, which was not requested"),
    ("refused", NotPlaced(), InternalError, "why"),
    ("called", PartnerFound("D"), InternalError, "a cache without a prefill worker was to be pulled"),
]


@pytest.mark.parametrize(("state", "event", "kind", "message"), FATAL)
def test_what_ends_the_request(state: str, event: Event, kind: type[RouterError], message: str) -> None:
    """Every leg is dropped, and cancelled unless it ended by itself."""
    group = group_in(state)
    legs = {leg for leg in (group.prefill, group.decode) if leg is not None}
    *rest, end = advance(group, event)
    assert isinstance(end, Fail)
    assert type(end.error) is kind
    assert message in str(end.error)
    assert {action.leg for action in rest if isinstance(action, DropLeg)} == legs
    assert rest[-1] == Done()
    assert group.over


def test_an_expired_lease_is_recomputed_even_where_the_policy_forbids_it_after_a_failed_transfer() -> None:
    group = group_in("waiting")
    assert Place(NOBODY) in advance(group, Failed(PREFILL, pb.TRANSFER, "why", recompute=False))


def test_log_probabilities_that_are_missing() -> None:
    request = GenerationRequest("r", pack_ids([5]), 1, 9, Sampling(logprobs=1), 0.0)
    group = ChoiceGroup(Prompt(request), "r", (0,))
    for event in STATES["prefilling"]:
        advance(group, event)
    *_, end = advance(group, tokens(PREFILL, [10]))
    assert isinstance(end, Fail)
    assert "log-probabilities" in str(end.error)


def test_early_tokens_follow_the_first_one() -> None:
    group = group_in("pulling")
    for number in (1, 2):
        assert advance(group, tokens(DECODE, [10 + number], number)) == []
    assert advance(group, tokens(PREFILL, [10])) == [
        EmitTokens(leg, 0, [10 + number], []) for number, leg in enumerate((PREFILL, DECODE, DECODE))
    ]


def test_early_tokens_of_a_lost_worker_are_forgotten() -> None:
    group = group_in("pulling")
    advance(group, tokens(DECODE, [11], 1))
    advance(group, failed(PREFILL, LOST))
    assert group.prompt.choices[0].early == []


def test_one_token_needs_no_decode_worker() -> None:
    group = group_in("prefilling", most=1)
    assert advance(group, Started(PREFILL, 0, LEASE)) == [LegBegan(PREFILL, 0)]


def test_cached_tokens_are_those_of_the_last_leg_before_the_first_token() -> None:
    group = group_in("prefilling")
    advance(group, Started(PREFILL, 256, LEASE))
    assert group.prompt.cached_tokens == 256
    advance(group, tokens(PREFILL, [10]))
    advance(group, Started(PREFILL, 0, LEASE))
    assert group.prompt.cached_tokens == 256


def children(result: list[Action]) -> list[ChoiceGroup]:
    return [action.group for action in result if isinstance(action, Split)]


def test_each_unfinished_choice_continues_alone_from_its_tokens() -> None:
    group = group_in("adopted", choices=3)
    for choice in range(3):
        advance(group, tokens(PREFILL, [10], choice=choice))
    advance(group, tokens(DECODE, [11], 1, choice=0))
    advance(group, tokens(DECODE, [11], 1, choice=1, finish=pb.STOP))
    result = advance(group, failed(DECODE, pb.INTERNAL))
    first, second = children(result)
    assert [(one.request, one.choices, one.base, one.tries) for one in (first, second)] == [
        ("r.c0.1", (0,), 2, 1),
        ("r.c2.2", (2,), 1, 1),
    ]
    assert first.refused == {"D"}
    assert result[-1] == Done()
    assert group.over
    (start,) = (advance(first, Begin()), advance(first, Placed(PAIR)))[1]
    assert isinstance(start, StartLeg)
    assert (start.leg.request, start.leg.attempt, start.uncached_tokens) == ("r.c0.1", 0, 302)
    assert first.prompt.reason == "retry"


def test_a_choice_that_is_given_back_continues_alone_and_elsewhere() -> None:
    group = group_in("decoding", choices=2)
    advance(group, tokens(PREFILL, [10], choice=1))
    result = advance(group, tokens(DECODE, [], 2, finish=pb.MIGRATE))
    (child,) = children(result)
    assert (child.choices, child.base, child.refused) == ((0,), 2, {"D"})
    assert (group.choices, group.refused, group.over) == ((1,), set(), False)
    assert advance(group, tokens(DECODE, [12], 2)) == [], "it belongs to another group now"
    result = advance(group, tokens(DECODE, [], 1, choice=1, finish=pb.MIGRATE))
    assert [type(action) for action in result] == [Split, DropLeg, DropLeg, Done]
    assert group.over


def test_a_choice_keeps_its_groups_place_in_the_queue() -> None:
    group = group_in("waiting, first token known")
    result = advance(group, failed(PREFILL, pb.TRANSFER))
    (child,) = children(result)
    assert child.queue is Queue.HELD
    assert result.index(LeaveQueue()) > result.index(Split(child)), "the child inherits the place first"


def test_pauses_grow_until_patience_ends() -> None:
    """Only after the first token: before it, the client gets a status at once."""
    group = group_in("decoding")
    (child,) = children(advance(group, failed(DECODE, LOST)))
    advance(child, Begin())
    assert advance(child, NotPlaced()) == [Place(NOBODY)], "the worker that was lost may be back"
    pauses = []
    result = advance(child, NotPlaced())
    while isinstance(timer := result[0], SetTimer):
        pauses.append(timer.seconds)
        assert advance(child, TimerFired(Timer.PAUSE)) == [Place(NOBODY)]
        result = advance(child, NotPlaced())
    assert pauses[:4] == [0.1, 0.1, 0.2, 0.4]
    assert max(pauses) == machine.LONGEST_PAUSE_SECONDS
    assert sum(pauses) == pytest.approx(machine.PATIENCE_SECONDS, abs=machine.LONGEST_PAUSE_SECONDS)
    (end,) = (action for action in result if isinstance(action, Fail))
    assert isinstance(end.error, Unavailable)


def test_a_new_token_forgives_earlier_failures() -> None:
    group = group_in("alone")
    group.tries, group.paused_seconds, group.refused, group.failed = 3, 1.0, {"E"}, {"F"}
    advance(group, tokens(WHOLE, [10]))
    assert (group.tries, group.paused_seconds, group.refused, group.failed) == (0, 0.0, set(), set())


def test_prefills_token_forgives_nothing() -> None:
    group = group_in("prefilling")
    group.tries = 3
    advance(group, tokens(PREFILL, [10]))
    assert group.tries == 3


@pytest.mark.parametrize("reason", [pb.INTERNAL, pb.DRAINING, pb.TRANSFER, LOST])
def test_tries_are_bounded(reason: int) -> None:
    group = group_in("placing")
    for attempt in range(MAX_TRIES + 1):
        advance(group, Placed(ALONE))
        result = advance(group, failed(WHOLE._replace(attempt=attempt), reason))
        assert (result[-1] == Place(frozenset({"D"}))) == (attempt < MAX_TRIES)
    assert isinstance(result[-1], Fail)


def test_the_refusal_of_a_full_worker_is_the_error_that_the_client_gets() -> None:
    """429 tells it to come back, whatever failed last."""
    group = group_in("alone")
    advance(group, failed(WHOLE, pb.OVERLOADED))
    advance(group, Placed(ALONE))
    advance(group, failed(WHOLE._replace(attempt=1), pb.INTERNAL))
    *_, end = advance(group, NotPlaced())
    assert isinstance(end, Fail)
    assert isinstance(end.error, Overloaded)
