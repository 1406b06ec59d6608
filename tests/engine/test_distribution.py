"""For every pair of parameters, tokens follow the distribution of an independent oracle.

There are two oracles: the definitions written out in float64, and transformers' logits processors in the same order. A
draw is the inverse CDF of one uniform number, so a grid of uniform numbers shows the whole distribution without noise.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, combinations
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.logits_process import SequenceBiasLogitsProcessor

from v4_core.sampling import Sampling
from v4_engine import sampler
from v4_engine.sampler import Draw, TokenHistory, sample

GRID = 331
VOCAB = 24
PROMPT = 5
IDS = [3, 1, 7, 7, 2, 9, 9, 9, 4, 0, 3]  # prompt, then output
LOGITS = [3 * math.sin(5 * i * i + 1) for i in range(VOCAB)]  # all different
PARAMETERS: dict[str, list[Any]] = {
    "temperature": [0.5, 1.7],
    "top_k": [1, 8],
    "top_p": [0.3, 0.7, 0.95],
    "min_p": [0.05, 0.4],
    "repetition_penalty": [0.6, 1.8],
    "presence_penalty": [-1.0, 1.5],
    "frequency_penalty": [-0.5, 0.8],
    "logit_bias": [{3: 4.0, 9: -4.0, 20: 2.5}],
}
PAIRS = [
    Sampling(**{one: x, other: y})
    for one, other in combinations(PARAMETERS, 2)
    for x in PARAMETERS[one]
    for y in PARAMETERS[other]
]


def by_definition(logits: Sequence[float], ids: Sequence[int], prompt: int, s: Sampling) -> list[float]:
    """Return probabilities by token id, computed from the definitions."""
    values = [x + s.logit_bias.get(i, 0.0) for i, x in enumerate(logits)]
    for i in set(ids):
        values[i] = values[i] / s.repetition_penalty if values[i] > 0 else values[i] * s.repetition_penalty
    for i in ids[prompt:]:
        values[i] -= s.frequency_penalty
    for i in set(ids[prompt:]):
        values[i] -= s.presence_penalty
    top = max(values)
    left = _shares({i: math.exp((x - top) / s.temperature) for i, x in enumerate(values)})
    ranked = sorted(left, key=lambda i: (-values[i], i))
    left = _shares({i: left[i] for i in ranked if left[i] >= s.min_p * left[ranked[0]]})
    left = _shares({i: left[i] for i in list(left)[: s.top_k or None]})
    before = [0.0, *accumulate(left.values())]
    left = _shares({i: p for (i, p), mass in zip(left.items(), before, strict=False) if s.top_p == 1 or mass < s.top_p})
    return [left.get(i, 0.0) for i in range(len(logits))]


def _shares(weights: dict[int, float]) -> dict[int, float]:
    total = math.fsum(weights.values())
    return {i: x / total for i, x in weights.items()}


def by_transformers(logits: Sequence[float], ids: Sequence[int], s: Sampling) -> list[float]:
    """Return transformers' probabilities by token id. It has no presence and frequency penalties."""
    steps = LogitsProcessorList()
    if s.logit_bias:
        steps.append(SequenceBiasLogitsProcessor([[[i], float(x)] for i, x in s.logit_bias.items()]))
    if s.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(s.repetition_penalty))
    if s.temperature != 1:
        steps.append(TemperatureLogitsWarper(s.temperature))
    if s.min_p:
        steps.append(MinPLogitsWarper(s.min_p))
    if s.top_k:
        steps.append(TopKLogitsWarper(s.top_k))
    if s.top_p < 1:
        steps.append(TopPLogitsWarper(s.top_p))
    scores = steps(torch.LongTensor([list(ids)]), torch.tensor([list(logits)], dtype=torch.float64))
    shares: list[float] = scores.softmax(-1)[0].tolist()
    return shares


def assert_drawn(logits: Sequence[float], ids: Sequence[int], prompt: int, s: Sampling, expected: list[float]) -> None:
    """Assert that every u of a grid draws the token at which the expected cumulative distribution exceeds u."""
    history = TokenHistory(ids, prompt, len(logits), torch.device("cpu"))
    draws = [Draw(s, position, 0, history) for position in range(GRID)]
    row = torch.tensor([list(logits)], dtype=torch.float64).expand(GRID, -1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sampler, "uniform", lambda seed, choice, position: (position + 0.5) / GRID)
        drawn = sample(row, draws)
    cuts = list(accumulate(expected))
    for position, one in enumerate(drawn):
        u = (position + 0.5) / GRID
        if min(abs(u - cut) for cut in cuts) > 1e-9:
            assert one is not None
            assert one.id == bisect_right(cuts, u), (s, u)


@pytest.mark.parametrize("s", PAIRS, ids=str)
def test_every_pair_of_parameters(s: Sampling) -> None:
    expected = by_definition(LOGITS, IDS, PROMPT, s)
    assert_drawn(LOGITS, IDS, PROMPT, s, expected)
    theirs = by_transformers(LOGITS, IDS, replace(s, presence_penalty=0.0, frequency_penalty=0.0))
    if not (s.presence_penalty or s.frequency_penalty):
        assert theirs == pytest.approx(expected, abs=1e-12)


def test_top_p_is_a_share_of_what_top_k_keeps() -> None:
    """The order of filters matters most over a flat distribution.

    8 of 100 tokens have 8 % of the mass, and 6 of these 8 have 70 % of that.
    """
    logits = [1 - i / 1000 for i in range(100)]
    expected = by_transformers(logits, [0], Sampling(top_k=8, top_p=0.7))
    assert sum(p > 0 for p in expected) == 6
    assert_drawn(logits, [0], 1, Sampling(top_k=8, top_p=0.7), expected)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_parameters_over_any_logits(data: st.DataObject) -> None:
    vocab = data.draw(st.integers(1, 12))
    eighths = st.integers(-48, 48).map(lambda i: i / 8)  # exact in binary like the penalties: oracles agree on ties
    logits = data.draw(st.lists(eighths, min_size=vocab, max_size=vocab))
    ids = data.draw(st.lists(st.integers(0, vocab - 1), min_size=1, max_size=8))
    prompt = data.draw(st.integers(1, len(ids)))
    s = Sampling(
        temperature=data.draw(st.sampled_from([0.5, 1.0, 2.0])),
        top_k=data.draw(st.sampled_from([0, 1, 3, 100])),
        top_p=data.draw(st.sampled_from([0.123, 0.567, 0.911, 1.0])),
        min_p=data.draw(st.sampled_from([0.0, 0.0917, 0.513, 1.0])),
        repetition_penalty=data.draw(st.sampled_from([0.5, 1.0, 2.0])),
        presence_penalty=data.draw(st.sampled_from([0.0, -1.25, 1.0])),
        frequency_penalty=data.draw(st.sampled_from([0.0, -0.75, 1.0])),
        logit_bias=data.draw(
            st.dictionaries(st.integers(0, vocab - 1), st.sampled_from([-100.0, -1.75, 2.875, 100.0]))
        ),
    )
    assert_drawn(logits, ids, prompt, s, by_definition(logits, ids, prompt, s))
