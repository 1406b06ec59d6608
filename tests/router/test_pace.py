"""How fast a worker is believed to be, and what a prompt is expected to take."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_router.pace import Awaited, Pace

prompts = st.lists(st.integers(1, 1 << 20), min_size=1, max_size=50)


def paced(*measured: tuple[int, float]) -> Pace:
    pace = Pace()
    for tokens, seconds in measured:
        pace.add(tokens, seconds)
    return pace


def rate(pace: Pace) -> float:
    seconds = pace.seconds(1)
    assert seconds is not None
    return 1 / seconds


def test_nothing_is_expected_before_anything_was_measured() -> None:
    assert Pace().seconds(100) is None


@given(prompts, st.floats(1.0, 1e6))
def test_a_steady_worker_is_known_from_its_first_prompt_on(lengths: list[int], tokens_per_second: float) -> None:
    pace = Pace()
    for tokens in lengths:
        pace.add(tokens, tokens / tokens_per_second)
        assert pace.seconds(1000) == pytest.approx(1000 / tokens_per_second)


@given(st.lists(st.tuples(st.integers(1, 100_000), st.floats(1e-4, 100.0)), min_size=1, max_size=50))
def test_the_mean_is_within_what_was_measured(measured: list[tuple[int, float]]) -> None:
    rates = [tokens / seconds for tokens, seconds in measured]
    assert min(rates) * 0.999 <= rate(paced(*measured)) <= max(rates) * 1.001


def test_one_stall_moves_it_little_and_a_lasting_change_is_learned() -> None:
    steady = [(10_000, 1.0)] * 50
    assert rate(paced(*steady, (10_000, 10.0))) > 7_500
    assert rate(paced(*steady, *[(10_000, 10.0)] * 50)) == pytest.approx(1_000, rel=0.05)


def test_short_prompts_count_for_little() -> None:
    long = [(10_000, 1.0)] * 20
    assert rate(paced(*long, *[(1, 0.01)] * 20)) > 9_000, "a step's fixed cost says nothing of long prompts"
    assert rate(paced((3, 0.01), (10_000, 1.0))) == pytest.approx(10_000, rel=0.1)


@pytest.mark.parametrize(("tokens", "seconds"), [(0, 1.0), (5, 0.0), (5, -1.0)])
def test_what_cannot_be_measured_is_left_out(tokens: int, seconds: float) -> None:
    assert Pace().seconds(5) is None
    assert rate(paced((100, 1.0), (tokens, seconds))) == pytest.approx(100)


def test_a_prompt_is_expected_behind_those_ahead_and_learned_from() -> None:
    pace = Pace()
    first = Awaited(pace, queued=500, uncached=500, sent=10.0)
    assert first.expect() is None
    assert first.came(11.0) is None
    assert rate(pace) == pytest.approx(1000)
    second = Awaited(pace, queued=0, uncached=2000, sent=20.0)
    assert second.expect() == pytest.approx(2.0)
    second.uncached = 1000  # the worker had more of it
    assert second.came(21.0) == pytest.approx(0.5), "of what was expected when it was sent"
    assert rate(pace) == pytest.approx(1000)
