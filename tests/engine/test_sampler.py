"""Sampling depends on parameters, ids and choice only; tokens follow the requested distribution; tables of filters."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from v4_core.sampling import Sampling
from v4_engine.sampler import Draw, Drawn, TokenHistory, penalised, sample, uniform

FIXED = [0.3035680343067586, 0.28524485850336523]


def draw(
    logits: list[float], sampling: Sampling, ids: list[int] | None = None, prompt: int = 0, choice: int = 0
) -> int:
    """Return one draw."""
    return drawn_of(logits, make(sampling, ids or [], prompt, choice, len(logits))).id


def make(sampling: Sampling, ids: list[int], prompt: int, choice: int, vocab: int) -> Draw:
    """Return a draw after these ids, of which the first `prompt` are the prompt."""
    history = TokenHistory(ids, prompt, vocab, torch.device("cpu")) if penalised(sampling) else None
    return Draw(sampling, len(ids), choice, history)


def drawn_of(logits: list[float], one: Draw) -> Drawn:
    """Return the token that is sampled from one row."""
    (drawn,) = sample(torch.tensor([logits]), [one])
    assert drawn is not None
    return drawn


def test_uniform_never_changes() -> None:
    """These values must not change: a continuation elsewhere or by a later version samples the same tokens."""
    assert [uniform(1, 0, 0), uniform(2**64 - 1, 3, 1_000_000)] == FIXED
    assert len({uniform(s, c, p) for s in range(5) for c in range(5) for p in range(5)}) == 125
    values = [uniform(7, 0, p) for p in range(4000)]
    assert all(0 <= v < 1 for v in values)
    assert abs(sum(values) / len(values) - 0.5) < 0.02


def test_draws_follow_the_softmax() -> None:
    logits = [0.0, 1.0, 2.0]
    total = sum(math.exp(x) for x in logits)
    counts = Counter(draw(logits, Sampling(seed=3), [0] * p) for p in range(3000))
    for token, logit in enumerate(logits):
        assert abs(counts[token] / 3000 - math.exp(logit) / total) < 0.03


@pytest.mark.parametrize(
    ("sampling", "allowed"),
    [
        (Sampling(top_k=1), {3}),
        (Sampling(top_k=2), {2, 3}),
        (Sampling(top_p=0.5), {3}),
        (Sampling(top_p=0.85), {2, 3}),
        (Sampling(top_p=0.9), {1, 2, 3}),
        (Sampling(min_p=0.3), {2, 3}),
        (Sampling(temperature=0.0), {3}),
        (Sampling(logit_bias={0: 100.0}), {0}),
        (Sampling(temperature=1e-6), {3}),
    ],
)
def test_filters(sampling: Sampling, allowed: set[int]) -> None:
    seen = {draw([0.0, 1.0, 2.0, 3.0], sampling, [0] * p) for p in range(300)}
    assert seen == allowed


def test_penalties_see_output_or_everything() -> None:
    logits = [1.0, 0.9, -1.0]
    greedy = Sampling(temperature=0.0)
    assert draw(logits, greedy, [0, 0], prompt=2) == 0
    assert draw(logits, Sampling(temperature=0.0, presence_penalty=0.5), [0, 0], prompt=2) == 0, "prompt does not count"
    assert draw(logits, Sampling(temperature=0.0, presence_penalty=0.5), [0, 0], prompt=1) == 1
    assert draw(logits, Sampling(temperature=0.0, frequency_penalty=0.06), [9 % 3, 0, 0], prompt=1) == 1
    assert draw(logits, Sampling(temperature=0.0, repetition_penalty=2.0), [0], prompt=1) == 1, "prompt counts"


def test_ties_go_to_the_lower_id() -> None:
    assert draw([1.0, 2.0, 2.0], Sampling(temperature=0.0)) == 1
    assert {draw([1.0, 2.0, 2.0], Sampling(top_k=1), [0] * p) for p in range(50)} == {1}


def test_logprobs_are_the_models_own() -> None:
    sampling = Sampling(temperature=0.3, logit_bias={0: 50.0}, logprobs=2)
    drawn = drawn_of([1.0, 2.0, 3.0], Draw(sampling, 0, 0))
    expected = torch.tensor([1.0, 2.0, 3.0]).log_softmax(0).tolist()
    assert drawn.id == 0
    assert drawn.logprob == pytest.approx(expected[0])
    assert [i for i, _ in drawn.top] == [2, 1]
    assert [v for _, v in drawn.top] == pytest.approx([expected[2], expected[1]])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_row_does_not_depend_on_its_batch(data: st.DataObject) -> None:
    vocab = 17
    floats = st.floats(-5, 5, width=32)
    rows = data.draw(st.lists(st.lists(floats, min_size=vocab, max_size=vocab), min_size=1, max_size=4))
    draws = []
    for _ in rows:
        sampling = Sampling(
            temperature=data.draw(st.sampled_from([0.0, 0.5, 1.0])),
            top_k=data.draw(st.sampled_from([0, 1, 5])),
            top_p=data.draw(st.sampled_from([0.3, 1.0])),
            min_p=data.draw(st.sampled_from([0.0, 0.1])),
            seed=data.draw(st.integers(0, 2**64 - 1)),
            repetition_penalty=data.draw(st.sampled_from([1.0, 1.3])),
            logprobs=data.draw(st.sampled_from([None, 0, 3])),
        )
        ids = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=6))
        draws.append(make(sampling, ids, 1, data.draw(st.integers(0, 3)), vocab))
    together = sample(torch.tensor(rows), draws)
    for row, one, out in zip(rows, draws, together, strict=True):
        alone = drawn_of(row, one)
        assert out is not None
        assert (alone.id, alone.logprob is None, len(alone.top)) == (out.id, out.logprob is None, len(out.top))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("bias", [{}, {0: 100.0, 1: -100.0}])
@pytest.mark.parametrize(
    "row",
    [[math.nan, 1.0], [1.0, math.nan], [math.inf, 1.0], [1.0, -math.inf], [math.inf, -math.inf], [-math.inf] * 2],
)
def test_a_row_that_is_not_finite_gives_no_token_and_the_others_get_theirs(
    row: list[float], bias: dict[int, float], temperature: float
) -> None:
    plain = Draw(Sampling(temperature=temperature, seed=1, logprobs=1), 5, 0)
    broken = Draw(Sampling(temperature=temperature, seed=1, top_k=1, logit_bias=bias, logprobs=1), 5, 0)
    drawn = sample(torch.tensor([[0.0, 99.0], row, [99.0, 0.0]]), [plain, broken, plain])
    assert [d.id if d else None for d in drawn] == [1, None, 0]


def test_the_largest_finite_logits_are_drawn_from() -> None:
    most = torch.finfo(torch.float32).max
    (drawn,) = sample(torch.tensor([[most, most, -most, -most]]), [Draw(Sampling(seed=1), 5, 0)])
    assert drawn is not None
    assert drawn.id in (0, 1)


def test_a_history_that_grows_equals_a_new_one() -> None:
    grown, rebuilt = TokenHistory([3, 1], 1, 5, torch.device("cpu")), TokenHistory([3, 1, 4], 1, 5, torch.device("cpu"))
    grown.add(4)
    assert torch.equal(grown.counts, rebuilt.counts)
    assert torch.equal(grown.seen, rebuilt.seen)


def test_extreme_parameters_give_a_token() -> None:
    for sampling in (
        Sampling(temperature=1e-300),
        Sampling(presence_penalty=1e30),
        Sampling(top_p=1e-300),
        Sampling(logit_bias={0: -100.0, 1: -100.0}),
    ):
        assert draw([1.0, 2.0], sampling, [0, 1], 1) in (0, 1)


def test_alternatives_with_ties_are_the_lowest_ids() -> None:
    drawn = drawn_of([5.0, 1.0, 1.0, 1.0, 0.0], Draw(Sampling(temperature=0.0, logprobs=2), 0, 0))
    assert [i for i, _ in drawn.top] == [0, 1]
