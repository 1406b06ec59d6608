"""When an error that should pass has not passed."""

from datetime import UTC, datetime, timedelta

from v4_operator.cache import Key
from v4_operator.errors import ApiError
from v4_operator.failures import Failures

A, B = Key("n", "a"), Key("n", "b")
ERRORS = [ApiError("apply x", 500)]
START = datetime(2026, 1, 1, tzinfo=UTC)


def test_only_failures_without_a_break_add_up() -> None:
    failures = Failures()

    def look(key: Key, failed: bool, second: int) -> bool:
        return failures.look(key, ERRORS if failed else [], START + timedelta(seconds=second))

    assert [look(A, True, second) for second in (0, 30, 59, 60, 90)] == [False, False, False, True, True]
    assert not look(B, True, 90), "each has its own time"
    assert not look(A, False, 91)
    assert [look(A, True, second) for second in (92, 151, 152)] == [False, False, True]
    failures.forget(A)
    assert not look(A, True, 153)
