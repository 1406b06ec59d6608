"""CPU versions of the operators in which torch spends most of the time on overhead: loops compiled by numba.

A decode step of a small batch is hundreds of torch operators on a few numbers each (Sinkhorn alone is 117 per
sublayer); one compiled loop does the work of many. Results equal the reference's except for rounding. The loops support
fp32 and fp64 only. They are compiled at first use and kept in numba's cache on disk.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from v4_engine.kernels import reference
from v4_engine.kernels.compiler import compiler

compress = reference.compress
index_scores = reference.index_scores
attend = reference.attend
attend_selected = reference.attend_selected
grouped_linear = reference.grouped_linear

Floats = NDArray[np.floating]
Ints = NDArray[np.int64]
_SPREAD_ROWS = 64  # with fewer rows, starting a thread costs more than it saves


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """As reference.rms_norm."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    _spread(_rms_norm, (x.numpy(), out.numpy()), weight.numpy(), eps)
    return out


def head_norm(q: Tensor, eps: float, acc: torch.dtype) -> Tensor:
    """As reference.head_norm."""
    out = torch.empty(q.shape, dtype=acc)
    _spread(_head_norm, (q.numpy(), out.numpy()), eps)
    return out


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """As reference.rotate, for x [S, C] or [S, H, C] and angles of S positions."""
    out = torch.empty(x.shape, dtype=x.dtype)
    heads = x.shape[1] if x.dim() == 3 else 1
    shape = (x.shape[0], heads, x.shape[-1])
    pairs = cos.shape[-1]
    angles = (cos.reshape(-1, pairs).numpy(), sin.reshape(-1, pairs).numpy())
    _spread(_rotate, (x.reshape(shape).numpy(), *angles, out.view(shape).numpy()))
    return out


def hyper_pre(
    streams: Tensor, mixes: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """As reference.hyper_pre."""
    tokens, m, width = streams.shape
    x = torch.empty(tokens, width, dtype=streams.dtype)
    post = torch.empty(tokens, m, dtype=mixes.dtype)
    comb = torch.empty(tokens, m, m, dtype=mixes.dtype)
    rows = (streams.numpy(), mixes.numpy(), x.numpy(), post.numpy(), comb.numpy())
    _spread(_hyper_pre, rows, scale.numpy(), base.numpy(), iterations, eps, norm_eps)
    return x, post, comb


def hyper_post(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """As reference.hyper_post."""
    mixed = torch.empty_like(streams)
    _spread(_hyper_post, (out.numpy(), streams.numpy(), post.numpy(), comb.numpy(), mixed.numpy()))
    return mixed


def route(logits: Tensor, bias: Tensor | None, fixed: Tensor | None, k: int, factor: float) -> tuple[Tensor, Tensor]:
    """As reference.route."""
    tokens = logits.shape[0]
    experts = torch.empty(tokens, k, dtype=torch.int64) if fixed is None else fixed
    weights = torch.empty(tokens, k, dtype=logits.dtype)
    shift = np.zeros(logits.shape[1], dtype=logits.numpy().dtype) if bias is None else bias.numpy()
    _spread(_route, (logits.numpy(), experts.numpy(), weights.numpy()), shift, fixed is None, factor)
    return experts, weights


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """As reference.swiglu."""
    out = torch.empty(gate_up.shape[0], gate_up.shape[1] // 2, dtype=gate_up.dtype)
    _spread(_swiglu, (gate_up.numpy(), out.numpy()), limit)
    return out


def select(scores: Tensor, visible: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """As reference.select."""
    index = torch.empty(scores.shape[0], k, dtype=torch.int64)
    valid = torch.empty(scores.shape[0], k, dtype=torch.bool)
    _spread(_select, (scores.numpy(), visible.numpy(), index.numpy(), valid.numpy()))
    return index, valid


def _spread(function: Callable[..., None], rows: tuple[NDArray[Any], ...], *shared: object) -> None:
    """Run a loop over the rows of these arrays, on as many threads as torch uses if there are enough rows."""
    count, threads = rows[0].shape[0], torch.get_num_threads()
    if threads == 1 or count < _SPREAD_ROWS:
        function(*rows, *shared)
        return
    step = -(-count // threads)
    parts = [[array[first : first + step] for array in rows] for first in range(0, count, step)]
    others = [_threads().submit(function, *part, *shared) for part in parts[1:]]
    function(*parts[0], *shared)
    for other in others:
        other.result()


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(torch.get_num_threads(), thread_name_prefix="operators")


_jit = compiler({"reassoc", "contract", "nsz"})
_exact = compiler(False)


@_jit
def _rms_norm(x: Floats, out: Floats, weight: Floats, eps: float) -> None:
    width = x.shape[1]
    for s in range(x.shape[0]):
        total = x[s, 0] * x[s, 0]
        for i in range(1, width):
            total += x[s, i] * x[s, i]
        factor = 1 / math.sqrt(total / width + eps)
        for i in range(width):
            out[s, i] = x[s, i] * factor * weight[i]


@_jit
def _head_norm(x: Floats, out: Floats, eps: float) -> None:
    width = x.shape[2]
    for s in range(x.shape[0]):
        for h in range(x.shape[1]):
            total = x[s, h, 0] * x[s, h, 0]
            for i in range(1, width):
                total += x[s, h, i] * x[s, h, i]
            factor = 1 / math.sqrt(total / width + eps)
            for i in range(width):
                out[s, h, i] = x[s, h, i] * factor


@_jit
def _rotate(x: Floats, cos: Floats, sin: Floats, out: Floats) -> None:
    plain = x.shape[2] - 2 * cos.shape[1]
    for s in range(x.shape[0]):
        for h in range(x.shape[1]):
            for i in range(plain):
                out[s, h, i] = x[s, h, i]
            for i in range(cos.shape[1]):
                a, b = x[s, h, plain + 2 * i], x[s, h, plain + 2 * i + 1]
                out[s, h, plain + 2 * i] = a * cos[s, i] - b * sin[s, i]
                out[s, h, plain + 2 * i + 1] = b * cos[s, i] + a * sin[s, i]


@_jit
def _hyper_pre(
    streams: Floats,
    mixes: Floats,
    x: Floats,
    post: Floats,
    comb: Floats,
    scale: Floats,
    base: Floats,
    iterations: int,
    eps: float,
    norm_eps: float,
) -> None:
    tokens, m, width = streams.shape
    for s in range(tokens):
        total = streams.dtype.type(0)
        for j in range(m):
            for i in range(width):
                total += streams[s, j, i] * streams[s, j, i]
        factor = 1 / math.sqrt(total / (m * width) + norm_eps)
        for i in range(width):
            x[s, i] = 0
        for j in range(m):
            weight = 1 / (1 + math.exp(-(mixes[s, j] * factor * scale[j] + base[j]))) + eps
            for i in range(width):
                x[s, i] += weight * streams[s, j, i]
            post[s, j] = 2 / (1 + math.exp(-(mixes[s, m + j] * factor * scale[m + j] + base[m + j])))
        c = comb[s]
        for j in range(m):
            at = 2 * m + j * m
            top = mixes[s, at] * factor * scale[at] + base[at]
            for i in range(m):
                c[j, i] = mixes[s, at + i] * factor * scale[at + i] + base[at + i]
                top = max(top, c[j, i])
            row = comb.dtype.type(0)
            for i in range(m):
                c[j, i] = math.exp(c[j, i] - top)
                row += c[j, i]
            for i in range(m):
                c[j, i] = c[j, i] / row + eps
        for turn in range(2 * iterations - 1):
            for j in range(m):
                line = comb.dtype.type(0)
                for i in range(m):
                    line += c[i, j] if turn % 2 == 0 else c[j, i]
                line = 1 / (line + eps)
                for i in range(m):
                    if turn % 2 == 0:
                        c[i, j] *= line
                    else:
                        c[j, i] *= line


@_jit
def _hyper_post(out: Floats, streams: Floats, post: Floats, comb: Floats, mixed: Floats) -> None:
    tokens, m, width = streams.shape
    for s in range(tokens):
        for k in range(m):
            for i in range(width):
                mixed[s, k, i] = post[s, k] * out[s, i]
            for j in range(m):
                weight = comb[s, j, k]
                for i in range(width):
                    mixed[s, k, i] += weight * streams[s, j, i]


@_exact
def _route(logits: Floats, experts: Ints, weights: Floats, bias: Floats, choose: bool, factor: float) -> None:
    tokens, count = logits.shape
    k = experts.shape[1]
    scores = np.empty(count, dtype=logits.dtype)
    biased = np.empty(count, dtype=logits.dtype)
    open_ = np.empty(count, dtype=np.bool_)
    for s in range(tokens):
        for e in range(count):
            x = logits[s, e]
            scores[e] = math.sqrt(max(x, 0) + math.log1p(math.exp(-abs(x))))
            biased[e] = scores[e] + bias[e]
            open_[e] = True
        total = 0.0
        for i in range(k):
            if choose:
                best, top = -1, biased[0]
                for e in range(count):  # same order as torch's sort, in which NaN is the highest
                    higher = best < 0 or biased[e] > top or (math.isnan(biased[e]) and not math.isnan(top))
                    if open_[e] and higher:
                        best, top = e, biased[e]
                open_[best] = False
                experts[s, i] = best
            total += scores[experts[s, i]]
        for i in range(k):
            weights[s, i] = scores[experts[s, i]] / total * factor


@_jit
def _swiglu(gate_up: Floats, out: Floats, limit: float) -> None:
    width = out.shape[1]
    for s in range(out.shape[0]):
        for i in range(width):
            gate = min(gate_up[s, i], limit)
            up = max(min(gate_up[s, width + i], limit), -limit)
            out[s, i] = gate / (1 + math.exp(-gate)) * up


@_exact
def _select(scores: Floats, visible: Ints, index: Ints, valid: NDArray[np.bool_]) -> None:
    k = index.shape[1]
    for s in range(scores.shape[0]):
        count = visible[s]
        if count <= k:
            for i in range(k):
                index[s, i] = i if i < count else 0
                valid[s, i] = i < count
            continue
        row = scores[s, :count].copy()
        for i in range(count):
            if math.isnan(row[i]):
                row[i] = math.inf
        least = np.partition(row, count - k)[count - k]
        above = 0
        for i in range(count):
            above += row[i] > least
        room, found = k - above, 0
        for i in range(count):
            if row[i] > least or (row[i] == least and room > 0):
                room -= row[i] == least
                index[s, found] = i
                valid[s, found] = True
                found += 1
