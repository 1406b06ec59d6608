"""NaN and infinities in every operator: the backends agree on the results, and other rows are not affected."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.engine.harness import make_engine, prompt, request
from v4_engine.events import Broken, Token
from v4_engine.inputs import StepInputs
from v4_engine.kernels import Kernels, cpu, reference

TYPES = [torch.float32, torch.float64]
ROWS, WIDTH, HEADS, STREAMS, EXPERTS = 3, 8, 2, 4, 6
_TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


@dataclass(frozen=True)
class Case:
    """One operator: the row shapes of the tensors that may contain any value, and how to call it."""

    shapes: tuple[tuple[int, ...], ...]
    call: Callable[[Kernels, tuple[Tensor, ...]], tuple[Tensor, ...]]
    chooses: bool = False  # returns indices, so a NaN need not appear in every result


def shared(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Return finite values that all rows share."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def _hyper_pre(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    streams, mixes = rows
    scale, base = (shared(mixes.shape[1], dtype=mixes.dtype, seed=seed) for seed in (1, 2))
    return k.hyper_pre(streams, mixes, scale, base, 4, 1e-6, 1e-6)


def _route(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (logits,) = rows
    return k.route(logits, shared(EXPERTS, dtype=logits.dtype), None, 2, 1.5)


def _route_fixed(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (logits,) = rows
    fixed = torch.arange(2 * logits.shape[0]).view(-1, 2) % EXPERTS
    return k.route(logits, None, fixed, 2, 1.5)[1:]


def _rotate(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (x,) = rows
    angle = shared(x.shape[0], 1, 2, dtype=x.dtype)
    return (k.rotate(x, angle.cos(), angle.sin()),)


def _compress(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (x,) = rows
    return (k.compress(x, torch.ones(x.shape[:2], dtype=torch.bool), shared(WIDTH, dtype=x.dtype), 1e-6),)


def _index_scores(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    query, weight = rows
    tiles = torch.arange(query.shape[0])
    keys = shared(128, WIDTH, dtype=query.dtype)
    return (k.index_scores(query, weight, keys, tiles, tiles * 0, tiles % 2 * 64, 1),)


def _attend(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    query, near = rows
    mask = torch.ones(query.shape[0], query.shape[1], near.shape[1], dtype=torch.bool)
    return (k.attend(query, near, mask, shared(HEADS, dtype=query.dtype)),)


def _attend_selected(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    query, near = rows
    mask = torch.ones(query.shape[0], query.shape[1], near.shape[1], dtype=torch.bool)
    chosen = torch.arange(2).expand(*query.shape[:2], 2)
    valid = torch.tensor([True, False]).expand_as(chosen)
    entries = torch.stack((shared(WIDTH, dtype=query.dtype), torch.full((WIDTH,), math.nan, dtype=query.dtype)))
    return (k.attend_selected(query, near, mask, entries, chosen, valid, shared(HEADS, dtype=query.dtype)),)


def _grouped_linear(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (x,) = rows
    ends = torch.tensor([x.shape[0], x.shape[0]], dtype=torch.int32)
    return (k.grouped_linear(x, shared(2, 5, WIDTH, dtype=x.dtype), ends),)


def _select(k: Kernels, rows: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    (scores,) = rows
    return k.select(scores, torch.full(scores.shape[:1], scores.shape[1]), 3)


CASES = {
    "rms_norm": Case(((WIDTH,),), lambda k, r: (k.rms_norm(r[0], shared(WIDTH, dtype=r[0].dtype), 1e-6),)),
    "head_norm": Case(((HEADS, WIDTH),), lambda k, r: (k.head_norm(r[0], 1e-6, r[0].dtype),)),
    "rotate": Case(((HEADS, WIDTH),), _rotate),
    "hyper_pre": Case(((STREAMS, WIDTH), (24,)), _hyper_pre),
    "hyper_post": Case(((WIDTH,), (STREAMS, WIDTH), (STREAMS,), (STREAMS, STREAMS)), lambda k, r: (k.hyper_post(*r),)),
    "route": Case(((EXPERTS,),), _route, chooses=True),
    "route, hashed": Case(((EXPERTS,),), _route_fixed, chooses=True),
    "swiglu": Case(((2 * WIDTH,),), lambda k, r: (k.swiglu(r[0], 1.0),)),
    "compress": Case(((4, 2 * WIDTH),), _compress),
    "index_scores": Case(((2, HEADS, WIDTH), (2, HEADS)), _index_scores),
    "select": Case(((EXPERTS,),), _select, chooses=True),
    "attend": Case(((2, HEADS, WIDTH), (5, WIDTH)), _attend),
    "attend_selected": Case(((2, HEADS, WIDTH), (5, WIDTH)), _attend_selected),
    "grouped_linear": Case(((WIDTH,),), _grouped_linear),
}


def test_every_operator_is_here() -> None:
    operators = {name for name in vars(Kernels) if not name.startswith("_")}
    assert {name.partition(",")[0] for name in CASES} == operators


def rows_of(data: st.DataObject, case: Case, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Draw random rows, in some of which some values are NaN or infinite."""
    seed = data.draw(st.integers(0, 1 << 16))
    generator = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(ROWS, *shape, generator=generator, dtype=torch.float64).to(dtype) for shape in case.shapes]
    for row in data.draw(st.sets(st.integers(0, ROWS - 1))):
        for _ in range(data.draw(st.integers(1, 4))):
            flat = data.draw(st.sampled_from(tensors))[row].view(-1)
            at = data.draw(st.integers(0, flat.numel() - 1))
            flat[at] = data.draw(st.sampled_from([math.nan, math.inf, -math.inf]))
    return tuple(tensors)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_backends_agree_and_what_is_not_finite_stays_in_its_row(
    name: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    case = CASES[name]
    rows = rows_of(data, case, dtype)
    truth = case.call(reference, tuple(t.clone() for t in rows))
    compiled = case.call(cpu, tuple(t.clone() for t in rows))
    for left, right in zip(compiled, truth, strict=True):
        torch.testing.assert_close(left, right, rtol=_TOLERANCE[dtype], atol=_TOLERANCE[dtype], equal_nan=True)
    finite = [all(bool(t[row].isfinite().all()) for t in rows) for row in range(ROWS)]
    broken = [any(bool(t[row].isnan().any()) for t in rows) for row in range(ROWS)]
    for row in range(ROWS):
        out = [t[row] for t in truth if t.is_floating_point()]
        if finite[row]:
            assert all(bool(t.isfinite().all()) for t in out)
        if broken[row] and not case.chooses:
            assert any(bool(t.isnan().any()) for t in out)


@settings(max_examples=200, deadline=None)
@given(
    logits=st.lists(
        st.one_of(st.integers(-2, 2), st.sampled_from([math.nan, math.inf, -math.inf])), min_size=2, max_size=9
    ),
    dtype=st.sampled_from(TYPES),
    data=st.data(),
)
def test_a_nan_score_is_routed_to_first_and_reaches_the_weights(
    logits: list[float], dtype: torch.dtype, data: st.DataObject
) -> None:
    k = data.draw(st.integers(1, len(logits)))
    ranked = sorted(range(len(logits)), key=lambda e: (not math.isnan(logits[e]), -logits[e] if logits[e] else 0, e))
    for kernels in (reference, cpu):
        experts, weights = kernels.route(torch.tensor([logits], dtype=dtype), None, None, k, 1.0)
        assert experts[0].tolist() == ranked[:k]
        assert not any(map(math.isnan, logits)) or bool(weights.isnan().all())


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_selection_takes_nan_as_infinite(data: st.DataObject) -> None:
    values = st.one_of(st.integers(-2, 2), st.sampled_from([math.nan, math.inf, -math.inf]))
    scores = data.draw(st.lists(values, min_size=1, max_size=12))
    k, visible = data.draw(st.integers(1, len(scores))), data.draw(st.integers(0, len(scores)))
    ranked = sorted(range(visible), key=lambda e: (-math.inf if math.isnan(scores[e]) else -scores[e], e))
    for kernels in (reference, cpu):
        index, valid = kernels.select(torch.tensor([scores], dtype=torch.float64), torch.tensor([visible]), k)
        assert [i for i, ok in zip(index[0].tolist(), valid[0].tolist(), strict=True) if ok] == sorted(ranked[:k])


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_request_whose_logits_are_not_finite_fails_alone_and_leaves_nothing(
    value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine()
    forward = engine._model.forward

    def damaged(inputs: StepInputs) -> Tensor:
        logits = forward(inputs)
        logits[inputs.positions[inputs.last] == 299, 5] = value
        return logits

    monkeypatch.setattr(engine._model, "forward", damaged)
    engine.submit(request(prompt(300), "broken", n=2))
    engine.submit(request(prompt(301, seed=2), "whole"))
    events = []
    while engine.busy:
        events += engine.step()
        engine.scheduler.check_integrity()
    assert [e.request.key[0] for e in events if isinstance(e, Broken)] == ["broken"]
    assert [e.request.key[0] for e in events if isinstance(e, Token)] == ["whole"] * 4
    assert len(engine.pool.tree.nodes) == 1, "the block of the request that got tokens"
