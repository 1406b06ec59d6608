"""Stop strings: the incremental matcher is compared with one that sees the whole text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_router.stops import StopMatcher


def plain(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """Returns the text before the stop string that is complete first, and whether there is one."""
    for end in range(1, len(text) + 1):
        if found := [stop for stop in stops if text[:end].endswith(stop)]:
            return text[: end - max(map(len, found))], True
    return text, False


def incremental(pieces: list[str], stops: tuple[str, ...]) -> tuple[str, bool]:
    matcher, shown = StopMatcher(stops), ""
    for piece in pieces:
        more, stopped = matcher.push(piece)
        shown += more
        if stopped:
            return shown, True
    return shown + matcher.flush(), False


@pytest.mark.parametrize("cut", range(len("say END now") + 1))
def test_a_stop_string_split_at_every_character(cut: int) -> None:
    text = "say END now"
    assert incremental([text[:cut], text[cut:]], ("END",)) == ("say ", True)
    assert incremental(list(text), ("END", "nothing")) == ("say ", True)


@given(
    st.lists(st.text("ab", max_size=4), max_size=12),
    st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=4).map(tuple),
)
def test_equal_to_the_whole_text(pieces: list[str], stops: tuple[str, ...]) -> None:
    assert incremental(pieces, stops) == plain("".join(pieces), stops)


@given(st.text("ab", max_size=20), st.lists(st.text("ab", min_size=1, max_size=5), min_size=1).map(tuple))
def test_no_more_is_held_back_than_may_become_a_stop_string(text: str, stops: tuple[str, ...]) -> None:
    matcher = StopMatcher(stops)
    shown, stopped = matcher.push(text)
    held = text[len(shown) :]
    assert stopped or held == "" or any(stop.startswith(held) for stop in stops)
