"""The compiled CPU operators equal the reference operators, which equal golden values of the formulas."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from v4_core.profiles import PROFILES
from v4_engine.kernels import cpu, reference
from v4_engine.rope import inverse_frequencies

TYPES = [torch.float32, torch.float64]
TOLERANCE = {torch.float32: 2e-5, torch.float64: 1e-12}


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    """Return normally distributed values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def same(left: object, right: object, dtype: torch.dtype) -> None:
    """Assert that tensors, or tuples of tensors, agree."""
    if isinstance(left, tuple):
        assert isinstance(right, tuple)
        for one, other in zip(left, right, strict=True):
            same(one, other, dtype)
        return
    torch.testing.assert_close(left, right, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_golden_sinkhorn() -> None:
    raw = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [1, -1, 1, -1], [0, 0, 0, 2]], dtype=torch.float64)
    golden = torch.tensor(
        [
            [0.033635, 0.214255, 0.312191, 0.439918],
            [0.484373, 0.417576, 0.082346, 0.015704],
            [0.375735, 0.119165, 0.471986, 0.033113],
            [0.106256, 0.249003, 0.133476, 0.511264],
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(reference.sinkhorn(raw[None], 20, 1e-6)[0], golden, rtol=0, atol=1e-6)


def test_golden_rope() -> None:
    x = torch.arange(1.0, 9.0, dtype=torch.float64)[None]
    angle = 3 * 10_000.0 ** (-torch.arange(0, 8, 2, dtype=torch.float64) / 8)[None]
    golden = [-1.272233, -1.838865, 1.683929, 4.707907, 4.817777, 6.147278, 6.975968, 8.020965]
    for kernels in (reference, cpu):
        turned = kernels.rotate(x, angle.cos(), angle.sin())
        torch.testing.assert_close(turned[0], torch.tensor(golden, dtype=torch.float64), rtol=0, atol=2e-6)


def test_golden_frequencies() -> None:
    config = PROFILES["flash"]
    main, yarn = (inverse_frequencies(config, compressed) for compressed in (False, True))
    golden = {0: (1.0, 1.0), 16: (9.99999978e-3, 2.26562493e-3), 24: (1.00000005e-3, 1.95312532e-5)}
    golden |= {15: (1.33352149e-2, 3.63553851e-3), 25: (7.49894185e-4, 5.37231244e-6), 31: (1.3335215e-4, 5.6805294e-7)}
    for i, (plain, scaled) in golden.items():
        assert main[i].item() == pytest.approx(plain, rel=1e-6)
        assert yarn[i].item() == pytest.approx(scaled, rel=1e-6)


def test_golden_gate_scores() -> None:
    _, weights = reference.route(torch.tensor([[-2.0, 0.0, 1.0, 5.0]]), None, torch.tensor([[0, 1, 2, 3]]), 4, 1.0)
    golden = torch.tensor([[0.356270, 0.832555, 1.145976, 2.237569]])
    torch.testing.assert_close(weights, golden / golden.sum(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("tokens", [1, 7, 131])
def test_compiled_equals_reference(dtype: torch.dtype, tokens: int) -> None:
    streams = random(tokens, 4, 24, seed=1, dtype=dtype)
    mixes, scale, base = (random(*s, seed=i, dtype=dtype) for i, s in enumerate(((tokens, 24), (24,), (24,)), 2))
    arguments = (streams, mixes, scale, base, 20, 1e-6, 1e-6)
    same(cpu.hyper_pre(*arguments), reference.hyper_pre(*arguments), dtype)
    _, post, comb = reference.hyper_pre(*arguments)
    out = random(tokens, 24, seed=9, dtype=dtype)
    same(cpu.hyper_post(out, streams, post, comb), reference.hyper_post(out, streams, post, comb), dtype)
    strided = random(tokens, 40, seed=5, dtype=dtype)[:, 8:32]
    weight = random(24, seed=6, dtype=dtype)
    same(cpu.rms_norm(strided, weight, 1e-6), reference.rms_norm(strided, weight, 1e-6), dtype)
    heads = random(tokens, 3, 16, seed=7, dtype=dtype)[..., :12]
    same(cpu.head_norm(heads, 1e-6, dtype), reference.head_norm(heads, 1e-6, dtype), dtype)
    angle = random(tokens, 1, 3, seed=8, dtype=dtype)
    same(cpu.rotate(heads, angle.cos(), angle.sin()), reference.rotate(heads, angle.cos(), angle.sin()), dtype)
    gate_up = 20 * random(tokens, 14, seed=10, dtype=dtype)
    same(cpu.swiglu(gate_up, 10.0), reference.swiglu(gate_up, 10.0), dtype)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("hashed", [False, True])
def test_routing_agrees_and_ties_go_low(dtype: torch.dtype, hashed: bool) -> None:
    logits = 30 * random(9, 8, seed=3, dtype=dtype)
    logits[0] = 1.0
    bias = None if hashed else random(8, seed=4, dtype=dtype) * (torch.arange(8) > 3)
    fixed = torch.stack([torch.randperm(8)[:2] for _ in range(9)]) if hashed else None
    left, right = cpu.route(logits, bias, fixed, 2, 1.5), reference.route(logits, bias, fixed, 2, 1.5)
    same(left, right, dtype)
    if not hashed:
        tied = cpu.route(logits[:1], None, None, 2, 1.0)[0]
        assert tied.tolist() == reference.route(logits[:1], None, None, 2, 1.0)[0].tolist() == [[0, 1]]


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_selection_is_the_k_highest_with_ties_to_the_lower_index(data: st.DataObject) -> None:
    entries = data.draw(st.integers(1, 40))
    k = data.draw(st.integers(1, entries))
    rows = data.draw(st.lists(st.lists(st.integers(-3, 3), min_size=entries, max_size=entries), min_size=1, max_size=4))
    visible = data.draw(st.lists(st.integers(0, entries), min_size=len(rows), max_size=len(rows)))
    scores = torch.tensor(rows, dtype=torch.float64)
    poisoned = scores.clone()
    for row, count in zip(poisoned, visible, strict=True):
        row[count:] = math.nan
    for kernels in (reference, cpu):
        index, valid = kernels.select(poisoned.clone(), torch.tensor(visible), k)
        for row, count, chosen, good in zip(rows, visible, index.tolist(), valid.tolist(), strict=True):
            ranked = [entry for _, entry in sorted((-row[e], e) for e in range(count))][:k]
            assert [c for c, ok in zip(chosen, good, strict=True) if ok] == sorted(ranked)
            assert all(c == 0 for c, ok in zip(chosen, good, strict=True) if not ok)


def test_grouped_linear() -> None:
    x, weight = random(7, 5), random(4, 3, 5, seed=1)
    ends = torch.tensor([2, 2, 6, 7], dtype=torch.int32)
    groups = [0, 0, 2, 2, 2, 2, 3]
    expected = torch.stack([weight[g] @ row for g, row in zip(groups, x, strict=True)])
    torch.testing.assert_close(reference.grouped_linear(x, weight, ends), expected)


def test_attention_over_own_rows_in_parts_equals_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    query, rows, entries = random(3, 4, 2, 8), random(3, 6, 8, seed=1), random(20, 8, seed=2)
    mask = torch.rand(3, 4, 6) > 0.3
    entry_row, entry_mask = torch.randint(0, 20, (3, 4, 5)), torch.rand(3, 4, 5) > 0.3
    arguments = (query, rows, mask, entries, entry_row, entry_mask, random(2, seed=3))
    whole = reference.attend_selected(*arguments)
    monkeypatch.setattr(reference, "_WORKSPACE_BYTES", 1)
    torch.testing.assert_close(reference.attend_selected(*arguments), whole)
    pieces = reference.attend(query, rows, mask, random(2, seed=3))
    monkeypatch.undo()
    torch.testing.assert_close(pieces, reference.attend(query, rows, mask, random(2, seed=3)))
    shared = torch.cat((rows[:, None].expand(3, 4, 6, 8), entries[entry_row]), dim=2)
    logits = torch.einsum("tqhd,tqkd->tqhk", query, shared)
    logits = logits.masked_fill(~torch.cat((mask, entry_mask), -1)[:, :, None], -torch.inf)
    sink = random(2, seed=3).view(1, 1, 2, 1).expand(3, 4, 2, 1)
    weight = torch.cat((logits, sink), -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(whole, torch.einsum("tqhk,tqkd->tqhd", weight, shared))


def test_a_nan_score_counts_as_infinite_and_stays_in_its_row(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [[1.0, math.nan, 2.0, 3.0], [math.nan] * 4, [4.0, 3.0, 2.0, 1.0], [math.inf, 1.0, math.inf, math.nan]]
    scores = torch.tensor(rows, dtype=torch.float64)
    visible = torch.tensor([4, 4, 4, 4])
    for kernels in (reference, cpu):
        index, valid = kernels.select(scores.clone(), visible, 2)
        assert index.tolist() == [[1, 3], [0, 1], [0, 1], [0, 2]]
        assert valid.all()
    whole = reference.select(scores.clone(), visible, 2)
    monkeypatch.setattr(reference, "_WORKSPACE_BYTES", 1)
    pieces = reference.select(scores.clone(), visible, 2)
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))
