"""Placement, by tables."""

import pytest

from v4_router.placement import REASONS, Placement, WorkerView, place


def p(address: str, queued: int = 0, cached: int = 0, fingerprint: str = "f", revision: str = "") -> WorkerView:
    return WorkerView(address, (revision, fingerprint), queued, 0, cached)


def way(placement: Placement | None) -> tuple[str | None, str, str] | None:
    return None if placement is None else (placement.prefill, placement.decode, placement.reason)


def d(address: str, sequences: int = 0, fingerprint: str = "f", revision: str = "") -> WorkerView:
    return WorkerView(address, (revision, fingerprint), 0, sequences)


@pytest.mark.parametrize(
    ("prefill", "decode", "expected"),
    [
        pytest.param([p("P")], [d("D")], ("P", "D", "least-queued"), id="the only pair"),
        pytest.param([p("P", 10), p("Q", 5)], [d("D")], ("Q", "D", "least-queued"), id="shortest queue"),
        pytest.param([p("P", 600, 512), p("Q")], [d("D")], ("Q", "D", "least-queued"), id="queue outweighs prefix"),
        pytest.param([p("P", 500, 512), p("Q")], [d("D")], ("P", "D", "prefix"), id="prefix outweighs queue"),
        pytest.param([p("P")], [d("D", 3), d("E", 2)], ("P", "E", "least-queued"), id="fewest sequences"),
        pytest.param([], [d("D", 1), d("E")], (None, "E", "no-prefill-worker"), id="no prefill worker"),
        pytest.param([p("P", fingerprint="g")], [d("D")], (None, "D", "no-prefill-left"), id="other weights"),
        pytest.param(
            [p("P"), p("Q", 9, fingerprint="g")],
            [d("D", 5), d("E", 0, "g")],
            ("P", "D", "least-queued"),
            id="a pair has one fingerprint",
        ),
        pytest.param(
            [p("P", 5, revision="a"), p("Q", 0, revision="b")],
            [d("D", 5, revision="b"), d("E", 0, revision="a")],
            ("Q", "D", "least-queued"),
            id="a pair has one revision",
        ),
        pytest.param(
            [p("P", revision="a")], [d("D", revision="b")], (None, "D", "no-prefill-left"), id="no pair of one revision"
        ),
    ],
)
def test_table(prefill: list[WorkerView], decode: list[WorkerView], expected: tuple[str | None, str, str]) -> None:
    for turn in range(3):
        assert way(place(1000, prefill, decode, turn=turn)) == expected
    assert expected[2] in REASONS


def test_no_worker_is_left() -> None:
    assert place(10, [p("P")], [], turn=0) is None
    assert place(10, [p("P")], [d("D")], turn=0, avoid={"D"}) is None
    assert place(10, [p("P")], [d("D")], turn=0, fingerprint="other") is None


def test_decode_may_not_compute_prompts() -> None:
    assert place(10, [], [d("D")], turn=0, alone=False) is None
    assert place(10, [p("P", revision="a")], [d("D", revision="b")], turn=0, alone=False) is None
    assert way(place(10, [p("P")], [d("D")], turn=0, alone=False)) == ("P", "D", "least-queued")


def test_a_continued_request_keeps_its_fingerprint_in_any_revision() -> None:
    prefill = [p("P", fingerprint="f", revision="b"), p("Q", 0, fingerprint="g", revision="c")]
    decode = [d("D", 9, "f", "b"), d("E", 0, "g", "c")]
    assert way(place(10, prefill, decode, turn=1, fingerprint="f")) == ("P", "D", "least-queued")


def test_avoided_workers_are_left_out() -> None:
    assert way(place(10, [p("P")], [d("D")], turn=0, avoid={"P"})) == (None, "D", "no-prefill-left")
    assert way(place(10, [p("P"), p("Q", 99)], [d("D")], turn=0, avoid={"P"})) == ("Q", "D", "least-queued")


def test_equals_take_turns() -> None:
    pairs = [place(10, [p("P"), p("Q")], [d("D"), d("E")], turn=turn) for turn in range(4)]
    assert [pair and pair.prefill for pair in pairs] == ["P", "Q", "P", "Q"]


def test_a_cached_prefix_counts_at_most_the_prompt() -> None:
    placement = place(100, [p("P", 50, 10_000), p("Q", 0, 100)], [d("D")], turn=0)
    assert placement is not None
    assert placement.prefill == "Q"


def test_tokens_queued_cached_and_cached_elsewhere() -> None:
    prefill = [p("P", 600, 512), p("Q", 5, 256), p("R", 900, 768)]
    placement = place(1000, prefill, [d("D")], turn=0)
    assert placement == Placement("Q", "D", "prefix", queued_tokens=5, cached_tokens=256, elsewhere_tokens=512)
    placement = place(1000, prefill, [d("D")], turn=0, avoid={"R", "Q"})
    assert placement == Placement("P", "D", "prefix", queued_tokens=600, cached_tokens=512, elsewhere_tokens=0)
    placement = place(100, prefill, [d("D")], turn=0)
    assert placement == Placement("Q", "D", "prefix", queued_tokens=5, cached_tokens=100, elsewhere_tokens=0)
