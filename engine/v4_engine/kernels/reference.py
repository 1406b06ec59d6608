"""The operators of the forward pass in plain torch, for any device. Faster kernels are tested against them.

Types: `acc` is fp64 if the model computes in fp64, otherwise fp32. No function keeps state or branches on tensor values
on the host. Section numbers in parentheses are those of the reference.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

_WORKSPACE_BYTES = 8 << 20  # roughly, of one piece of an operator; pieces that stay in a CPU's cache measured faster


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMSNorm over the last dimension in the weight's type, returned in x's type (2.1)."""
    y = x.to(weight.dtype)
    return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)


def head_norm(q: Tensor, eps: float, acc: torch.dtype) -> Tensor:
    """Weightless RMSNorm over the last dimension, in `acc` (2.3)."""
    q = q.to(acc)
    return q * torch.rsqrt(q.square().mean(-1, keepdim=True) + eps)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved RoPE of the last 2*cos.shape[-1] channels of x (2.4). cos, sin broadcast against x's pairs."""
    r = 2 * cos.shape[-1]
    plain, turned = x[..., :-r], x[..., -r:].to(cos.dtype)
    a, b = turned[..., 0::2], turned[..., 1::2]
    turned = torch.stack((a * cos - b * sin, b * cos + a * sin), dim=-1).flatten(-2)
    return torch.cat((plain, turned.to(x.dtype)), dim=-1)


def hyper_pre(
    streams: Tensor, mixes: Tensor, scale: Tensor, base: Tensor, iterations: int, eps: float, norm_eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Collapse streams [S, M, D] into a sublayer's input: (x [S, D], post [S, M], comb [S, M, M]) (2.2).

    mixes [S, (2+M)M] in `acc` is the projection of the flat streams; their norm factor is applied here, after the
    product. scale and base have one value per column of mixes. comb's first index is the source stream.
    """
    m = streams.shape[1]
    factor = (streams.flatten(1).to(mixes.dtype).square().mean(-1, keepdim=True) + norm_eps).rsqrt()
    mixes = mixes * factor * scale + base
    weights = mixes[:, : 2 * m].sigmoid()
    comb = sinkhorn(mixes[:, 2 * m :].unflatten(1, (m, m)), iterations, eps)
    x = ((weights[:, None, :m] + eps) @ streams.to(mixes.dtype)).squeeze(1)
    return x.to(streams.dtype), 2 * weights[:, m:], comb


def hyper_post(out: Tensor, streams: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """Return streams [S, M, D] with a sublayer's output [S, D] mixed in; `streams` are the input of its hyper_pre
    (2.2)."""
    mixed = comb.transpose(1, 2) @ streams.to(comb.dtype)
    return mixed.addcmul_(post.unsqueeze(-1), out.to(comb.dtype).unsqueeze(1)).to(streams.dtype)


def route(logits: Tensor, bias: Tensor | None, fixed: Tensor | None, k: int, factor: float) -> tuple[Tensor, Tensor]:
    """Return the experts [S, k] int64 of each token and their weights [S, k] (2.10). Ties go to the lower expert.

    logits [S, E] are in `acc`. bias [E] affects the choice only, not the weights. `fixed` [S, k] are the experts of a
    hash layer. A NaN score counts as the highest, as in torch's sort, so that it reaches the token's weights and
    output.
    """
    scores = F.softplus(logits).sqrt()
    if fixed is None:
        biased = scores if bias is None else scores + bias
        fixed = biased.sort(dim=-1, descending=True, stable=True).indices[:, :k]
    weights = scores.gather(1, fixed)
    return fixed, weights / weights.sum(-1, keepdim=True) * factor


def swiglu(gate_up: Tensor, limit: float) -> Tensor:
    """Clamped SwiGLU of [N, 2I] (gate, then up), computed in fp32 or fp64 and returned in gate_up's type (2.10)."""
    acc = torch.float64 if gate_up.dtype == torch.float64 else torch.float32
    gate, up = gate_up.to(acc).chunk(2, dim=-1)
    return (F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)).to(gate_up.dtype)


def sinkhorn(logits: Tensor, iterations: int, eps: float) -> Tensor:
    """Make nearly doubly stochastic matrices [S, M, M] of logits [S, M, M]. The last pass normalises columns (2.2)."""
    c = logits.softmax(-1) + eps
    c = c / (c.sum(-2, keepdim=True) + eps)
    for _ in range(iterations - 1):
        c = c / (c.sum(-1, keepdim=True) + eps)
        c = c / (c.sum(-2, keepdim=True) + eps)
    return c


def compress(rows: Tensor, valid: Tensor, norm: Tensor, eps: float) -> Tensor:
    """Close windows: rows [n, k, 2w] of [kv, score] and valid [n, k] -> normed entries [n, w], before RoPE (2.6)."""
    kv, score = rows.chunk(2, dim=-1)
    weight = score.masked_fill(~valid[..., None], -torch.inf).softmax(dim=1)
    return rms_norm((weight * kv).sum(dim=1), norm, eps)


def index_scores(
    query: Tensor, weight: Tensor, keys: Tensor, pair_tile: Tensor, pair_page: Tensor, pair_row: Tensor, pages: int
) -> Tensor:
    """Lightning-indexer scores [T, Q, pages * 64] of tiles of queries against pages of 64 keys (2.9).

    query [T, Q, Hi, di] and weight [T, Q, Hi] are in `acc`; keys [rows, di] is a layer's row matrix. Pair p scores tile
    pair_tile[p] against its sequence's page pair_page[p], whose keys start at row pair_row[p] (all int64 [P]). Scores
    without a pair and scores of keys that do not exist yet are undefined: the caller masks both.
    """
    tiles, queries, heads, width = query.shape
    scores = query.new_empty(tiles, queries, pages, 64)
    row = torch.arange(64, device=query.device)
    step = max(1, _WORKSPACE_BYTES // (queries * heads * (64 + width) * query.element_size()))
    for first in range(0, pair_tile.shape[0], step):
        tile, page, base = (index[first : first + step] for index in (pair_tile, pair_page, pair_row))
        key = keys[base[:, None] + row].to(query.dtype)
        dots = torch.bmm(query[tile].view(-1, queries * heads, width), key.transpose(1, 2)).relu_()
        dots = dots.view(-1, queries, heads, 64)
        scores[tile, :, page] = torch.matmul(weight[tile].unsqueeze(-2), dots).squeeze(-2)
    return scores.view(tiles, queries, pages * 64)


def select(scores: Tensor, visible: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Select the k highest of scores [N, E], E >= k, among the first visible[n] of each row. Ties go to the lower
    index.

    Returns (index [N, k] ascending, valid [N, k]); an invalid index is 0. A NaN score counts as infinite.
    """
    step = max(1, _WORKSPACE_BYTES // (6 * scores.shape[1] * scores.element_size()))
    if step >= scores.shape[0]:
        return _select(scores, visible, k)
    parts = [slice(first, first + step) for first in range(0, scores.shape[0], step)]
    chosen = [_select(scores[part], visible[part], k) for part in parts]
    return torch.cat([index for index, _ in chosen]), torch.cat([valid for _, valid in chosen])


def _select(scores: Tensor, visible: Tensor, k: int) -> tuple[Tensor, Tensor]:
    n, entries = scores.shape
    column = torch.arange(entries, device=scores.device)
    # Comparisons with NaN are false: its row would have fewer than k choices, which would shift those of later rows.
    scores = scores.masked_fill(scores.isnan(), torch.inf).masked_fill_(column >= visible[:, None], -torch.inf)
    least = scores.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
    above, equal = scores > least, scores == least
    room = k - above.sum(-1, keepdim=True)
    chosen = above | (equal & (equal.cumsum(-1) <= room))
    index = torch.nonzero_static(chosen, size=n * k)[:, 1].view(n, k)
    valid = index < visible[:, None]
    return index.masked_fill(~valid, 0), valid


def attend(query: Tensor, rows: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    """Attention of tiles over rows that all queries of a tile share, with K = V and one sink logit per head (2.3).

    query [T, Q, H, d] (scaled) and sinks [H] in `acc`, rows [T, K, d] finite, mask [T, Q, K] -> [T, Q, H, d].
    """
    tiles, queries, heads, _ = query.shape
    step = max(1, _WORKSPACE_BYTES // (queries * heads * rows.shape[1] * query.element_size()))
    if step >= tiles:
        return _attend(query, rows, mask, sinks)
    parts = [slice(first, first + step) for first in range(0, tiles, step)]
    return torch.cat([_attend(query[part], rows[part], mask[part], sinks) for part in parts])


def _attend(query: Tensor, rows: Tensor, mask: Tensor, sinks: Tensor) -> Tensor:
    tiles, queries, heads, width = query.shape
    rows = rows.to(query.dtype)
    logits = torch.bmm(query.reshape(tiles, queries * heads, width), rows.transpose(1, 2))
    logits = logits.view(tiles, queries, heads, -1).masked_fill_(~mask.unsqueeze(2), -torch.inf)
    sink = sinks.view(1, 1, heads, 1).expand(tiles, queries, heads, 1)
    weight = torch.cat((logits, sink), dim=-1).softmax(-1)[..., :-1]
    return torch.bmm(weight.reshape(tiles, queries * heads, -1), rows).view(query.shape)


def attend_selected(
    query: Tensor, rows: Tensor, mask: Tensor, entries: Tensor, entry_row: Tensor, entry_mask: Tensor, sinks: Tensor
) -> Tensor:
    """Attention as in `attend`, over rows that each query has to itself too: entry_row [T, Q, E] of `entries` [*, d].

    Entries whose entry_mask [T, Q, E] is False have no effect.
    """
    out = torch.empty_like(query)
    per_tile = entry_row.shape[1] * entry_row.shape[2] * query.shape[-1] * query.element_size()
    step = max(1, _WORKSPACE_BYTES // per_tile)
    for first in range(0, query.shape[0], step):
        part = slice(first, first + step)
        own = entries[entry_row[part]].to(query.dtype).masked_fill_(~entry_mask[part].unsqueeze(-1), 0)
        out[part] = _attend_two(query[part], rows[part], mask[part], own, entry_mask[part], sinks)
    return out


def _attend_two(query: Tensor, rows: Tensor, mask: Tensor, own: Tensor, own_mask: Tensor, sinks: Tensor) -> Tensor:
    """Attention with one softmax over shared rows, own rows and the sinks.

    rows [T, K, d] are shared by the queries of a tile; own [T, Q, E, d] belong to one query each.
    """
    tiles, queries, heads, width = query.shape
    rows = rows.to(query.dtype)
    near = torch.bmm(query.reshape(tiles, queries * heads, width), rows.transpose(1, 2))
    near = near.view(tiles, queries, heads, -1).masked_fill_(~mask.unsqueeze(2), -torch.inf)
    far = torch.matmul(query, own.transpose(2, 3)).masked_fill_(~own_mask.unsqueeze(2), -torch.inf)
    sink = sinks.view(1, 1, heads, 1).expand(tiles, queries, heads, 1)
    weight = torch.cat((near, far, sink), dim=-1).softmax(-1)
    near_weight, far_weight, _ = weight.split([rows.shape[1], own.shape[2], 1], dim=-1)
    out = torch.bmm(near_weight.reshape(tiles, queries * heads, -1), rows).view(query.shape)
    return out + torch.matmul(far_weight, own)


def grouped_linear(x: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """Multiply rows x [N, in], sorted by group, by their group's weight [G, out, in].

    ends [G] int32 is the end of each group's rows.
    """
    if x.is_cuda:
        return F.grouped_mm(x, weight.transpose(-2, -1), offs=ends)
    out = x.new_empty(x.shape[0], weight.shape[1])
    start = 0
    for group, end in enumerate(ends.tolist()):  # a CPU tensor, so this synchronises no device
        if end > start:
            torch.mm(x[start:end], weight[group].T, out=out[start:end])
        start = end
    return out
