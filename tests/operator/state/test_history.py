"""How long it takes until a V4Deployment is Ready, and when an error that should pass has not passed."""

from datetime import UTC, datetime, timedelta
from typing import Any

from v4_kube.errors import ApiError
from v4_operator.observed.objects import Key
from v4_operator.state.history import Failures, Readiness, is_ready

BORN = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = Key("n", "d")
A, B = Key("n", "a"), Key("n", "b")
ERRORS = [ApiError("apply x", 500)]


class Story:
    """One V4Deployment, looked at every 10 s."""

    def __init__(self, readiness: Readiness | None = None) -> None:
        self.readiness = readiness or Readiness()
        self.now = BORN
        self.generation = 1
        self.uid = "u"
        self.status: dict[str, Any] = {}

    def look(self, ready: bool) -> float | None:
        self.now += timedelta(seconds=10)
        metadata = {"uid": self.uid, "generation": self.generation, "creationTimestamp": "2026-01-01T12:00:00Z"}
        parent = {"metadata": metadata, "status": self.status}
        conditions = [{"type": "Degraded", "status": "True"}, {"type": "Ready", "status": str(ready)}]
        self.status = {"observedGeneration": self.generation, "conditions": conditions}
        return self.readiness.look(KEY, parent, self.status, self.now)


def test_a_new_v4deployment_is_measured_once_and_from_its_creation() -> None:
    story = Story()
    assert [story.look(ready) for ready in (False, False, True, True)] == [None, None, 30.0, None]
    assert [story.look(ready) for ready in (False, True)] == [None, None], "no change of the spec took it away"


def test_a_v4deployment_that_is_ready_at_the_first_reconcile() -> None:
    assert Story().look(True) == 10.0


def test_a_changed_spec_is_measured_from_its_first_reconcile() -> None:
    story = Story()
    story.look(True)
    story.generation = 2
    assert [story.look(ready) for ready in (False, False, True, True)] == [None, None, 20.0, None]


def test_a_change_that_keeps_ready_is_not_measured() -> None:
    story = Story()
    story.look(True)
    story.generation = 2
    assert [story.look(ready) for ready in (True, False, True)] == [None, None, None]


def test_a_change_before_the_former_one_is_ready_begins_anew() -> None:
    story = Story()
    assert [story.look(False) for _ in range(5)] == [None] * 5
    story.generation = 2
    assert [story.look(ready) for ready in (False, True)] == [None, 10.0]


def test_a_change_that_a_former_leader_began_is_not_measured() -> None:
    story = Story()
    story.look(False)
    story.readiness = Readiness()
    assert [story.look(ready) for ready in (False, True)] == [None, None]
    story.generation = 2
    assert [story.look(ready) for ready in (False, True)] == [None, 10.0]


def test_another_one_of_the_same_name_is_new() -> None:
    story = Story()
    story.look(True)
    story.uid, story.status = "v", {}
    assert [story.look(ready) for ready in (False, True)] == [None, 30.0]


def test_a_deleted_v4deployment_is_forgotten() -> None:
    story = Story()
    story.look(False)
    story.readiness.forget(KEY)
    story.readiness.forget(KEY)
    assert story.readiness._waits == {}


def test_ready_is_a_condition_that_is_true() -> None:
    assert not is_ready({})
    assert not is_ready({"conditions": [{"type": "Ready", "status": "Unknown"}]})
    assert is_ready({"conditions": [{"type": "X", "status": "False"}, {"type": "Ready", "status": "True"}]})


def test_only_consecutive_failures_add_up() -> None:
    failures = Failures()

    def look(key: Key, failed: bool, second: int) -> bool:
        return failures.look(key, ERRORS if failed else [], BORN + timedelta(seconds=second))

    assert [look(A, True, second) for second in (0, 30, 59, 60, 90)] == [False, False, False, True, True]
    assert not look(B, True, 90), "each has its own time"
    assert not look(A, False, 91)
    assert [look(A, True, second) for second in (92, 151, 152)] == [False, False, True]
    failures.forget(A)
    assert not look(A, True, 153)
