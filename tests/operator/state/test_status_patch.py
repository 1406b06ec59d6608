"""What is written into a status, and what is told of it."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_kube.errors import ApiError, Unreachable
from v4_operator.errors import Failure, KindMissing, Leaving, NameTaken
from v4_operator.state.status_patch import Transition, merge_patch, refused, transitions, with_errors

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def condition(kind: str, state: str, reason: str = "R", time: str = "before", message: str = "m") -> dict[str, Any]:
    return {"type": kind, "status": state, "reason": reason, "message": message, "lastTransitionTime": time}


def merged(old: Any, patch: Any) -> Any:
    """RFC 7386, as a server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


leaves = st.one_of(st.booleans(), st.integers(), st.text(max_size=3), st.lists(st.integers(), max_size=2))
statuses = st.recursive(
    st.dictionaries(st.sampled_from("abcd"), leaves, max_size=4),
    lambda inner: st.dictionaries(st.sampled_from("abcd"), st.one_of(leaves, inner), max_size=4),
    max_leaves=10,
)


@given(statuses, statuses)
def test_a_patch_makes_the_new_of_the_old(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = merge_patch(old, new)
    assert merged(old, patch) == new
    assert merge_patch(new, new) == {}
    assert bool(patch) is (old != new)


def test_times_alone_are_no_difference_but_travel_with_one() -> None:
    old = {"conditions": [condition("Ready", "True")]}
    later = {"conditions": [condition("Ready", "True", time="later")]}
    assert merge_patch(old, later) == {}
    assert merge_patch(old, {**later, "endpoint": "e"}) == {**later, "endpoint": "e"}
    assert merge_patch({"old": 1, **old}, old) == {"old": None}


def test_a_refused_spec_keeps_what_is_known_of_what_runs() -> None:
    old = {
        "endpoint": "e",
        "observedGeneration": 1,
        "conditions": [condition("Degraded", "True"), condition("X", "True")],
    }
    new = refused(old, 2, "InvalidSpec", "fix it", NOW)
    assert new["endpoint"] == "e"
    assert new["observedGeneration"] == 2
    assert [(c["type"], c["status"], c["reason"], c["lastTransitionTime"]) for c in new["conditions"]] == [
        ("Ready", "False", "InvalidSpec", "2026-01-02T03:04:05Z"),
        ("Progressing", "False", "InvalidSpec", "2026-01-02T03:04:05Z"),
        ("Degraded", "True", "InvalidSpec", "before"),
    ]
    assert {c["message"] for c in new["conditions"]} == {"fix it"}


FORBIDDEN = ApiError("PATCH /x", 403, {"message": "no rights"})
# Words of API servers, 1.20 to 1.36; none of these answers has a reason.
OF_1_20 = 'failed to create typed patch object: .spec.template.spec.containers[name="a"].env[name="X"].value: expected'
UNTYPED = (
    "failed to create typed patch object (n/a; apps/v1, Kind=Deployment): errors: .spec.volumes: duplicate entries"
)
UNTYPED_LIVE = "failed to create typed live object (n/a; apps/v1, Kind=Deployment): errors: .spec.volumes: duplicate"
DENIED = 'admission webhook "policy.example.com" denied the request: no team label'
NO_WEBHOOK = 'Internal error occurred: failed calling webhook "x": Post "https://x.svc": no endpoints available'


@pytest.mark.parametrize(
    ("errors", "reason", "message"),
    [
        ([], None, ""),
        ([Unreachable("PATCH /x", TimeoutError())], None, ""),
        ([Leaving("soon")], None, ""),
        ([ApiError("PATCH /x", 409), ApiError("PATCH /x", 500), ApiError("PATCH /x", 429)], None, ""),
        ([ApiError("PATCH /x", 403, {"details": {"causes": [{"reason": "NamespaceTerminating"}]}})], None, ""),
        ([FORBIDDEN], "ApplyFailed", "PATCH /x: no rights"),
        ([ApiError("PATCH /x", 422, {"reason": "Invalid"})], "ApplyFailed", "PATCH /x: Invalid"),
        ([KindMissing("no PDB")], "ApplyFailed", "no PDB"),
        ([ApiError("apply x", 400, {"message": "cannot unmarshal"})], "ApplyFailed", "apply x: cannot unmarshal"),
        ([ApiError("apply x", 500, {"message": OF_1_20})], "ApplyFailed", f"apply x: {OF_1_20}"),
        ([ApiError("apply x", 500, {"message": UNTYPED})], "ApplyFailed", f"apply x: {UNTYPED}"),
        ([ApiError("apply x", 500, {"message": UNTYPED_LIVE})], "ApplyFailed", f"apply x: {UNTYPED_LIVE}"),
        ([ApiError("apply x", 503, {"message": DENIED})], "ApplyFailed", f"apply x: {DENIED}"),
        ([ApiError("apply x", 500, {"message": NO_WEBHOOK}), ApiError("apply x", 504), ApiError("x", 408)], None, ""),
        ([Leaving("soon"), FORBIDDEN, NameTaken("taken")], "NameTaken", "PATCH /x: no rights; taken"),
    ],
)
def test_only_what_somebody_must_act_on_degrades(errors: list[Failure], reason: str | None, message: str) -> None:
    status = {"conditions": [condition("Degraded", "False"), condition("Ready", "True")]}
    new = with_errors(status, {}, errors, 3, NOW)
    if reason is None:
        assert new == status
        return
    ready, degraded = new["conditions"]
    assert ready == condition("Ready", "True")
    assert (degraded["status"], degraded["reason"], degraded["message"]) == ("True", reason, message)
    assert degraded["observedGeneration"] == 3
    again = with_errors(status, new, errors, 3, datetime.now(UTC))
    assert again == new, "its time is that of its beginning"


def test_an_error_that_should_pass_and_does_not_is_told() -> None:
    errors: list[Failure] = [Leaving("soon"), ApiError("apply x", 500, {"message": NO_WEBHOOK})]
    (degraded,) = with_errors({}, {}, errors, 3, NOW, stuck=True)["conditions"]
    told = f"apply x: {NO_WEBHOOK} (retried for over a minute)"
    assert (degraded["status"], degraded["reason"], degraded["message"]) == ("True", "ApplyFailed", told)


def test_a_refusal_does_not_hide_what_else_is_wrong() -> None:
    status = {"conditions": [condition("Degraded", "True", "Crashing", message="pod a crashes")]}
    (degraded,) = with_errors(status, {}, [FORBIDDEN], 3, NOW)["conditions"]
    assert degraded["message"] == "PATCH /x: no rights; pod a crashes"


def test_long_messages_are_cut() -> None:
    new = with_errors({}, {}, [NameTaken("x" * 5000)], 1, NOW)
    assert len(new["conditions"][0]["message"]) == 600
    assert len(transitions({}, new)[0].message) <= 1024, "the most that an Event takes"


@pytest.mark.parametrize(
    ("kind", "old", "new", "expected"),
    [
        ("Ready", None, "False", "Normal"),
        ("Ready", "False", "True", "Normal"),
        ("Ready", "False", "Unknown", "Normal"),
        ("Ready", "True", "Unknown", "Warning"),
        ("Ready", "True", "False", "Warning"),
        ("Degraded", None, "True", "Warning"),
        ("Degraded", "False", "True", "Warning"),
        ("Degraded", "True", "False", "Normal"),
        ("Progressing", "True", "False", "Normal"),
    ],
)
def test_transitions(kind: str, old: str | None, new: str, expected: str) -> None:
    before = [] if old is None else [condition(kind, old)]
    found = transitions({"conditions": before}, {"conditions": [condition(kind, new)]})
    assert found == [Transition(expected, "R", f"{kind} is {new}: m")]


def test_that_nothing_is_wrong_yet_is_not_told() -> None:
    assert transitions({}, {"conditions": [condition("Degraded", "False")]}) == []


def test_a_new_reason_is_told_and_a_new_message_is_not() -> None:
    old = {"conditions": [condition("Degraded", "True")]}
    other = condition("Degraded", "True", "Other", message="")
    assert transitions(old, {"conditions": [other]}) == [Transition("Warning", "Other", "Degraded is True: Other")]
    assert transitions(old, {"conditions": [condition("Degraded", "True", message="n", time="t")]}) == []
