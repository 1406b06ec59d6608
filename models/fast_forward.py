"""A faster forward pass for training transformers' DeepseekV4ForCausalLM on a CPU, equal to the original up to
rounding.

It replaces two slow parts of the eager model. Attention there covers the whole square of queries and keys, although
only a band of `sliding_window` raw rows and the compressed entries have weight. Sinkhorn there runs twenty rounds over
4x4 matrices in the innermost dimensions of memory. This module also trains the two parts that transformers does not
train: the indexer, whose selection of entries has no gradient, and the routing bias.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DeepseekV4ForCausalLM
from transformers.models.deepseek_v4 import modeling_deepseek_v4 as v4

NO_MASK = {"banded": None}  # with a dict of masks, the model builds no square mask
BIAS_STEP = 1e-3
torch._dynamo.config.recompile_limit = 64  # one compilation per row length and layer type


def install(model: DeepseekV4ForCausalLM) -> None:
    """Replace the forward of attention and hyper-connections, and record the expert loads that `balance` needs."""
    for module in modules(model, v4.DeepseekV4DecoderLayer):
        module.forward = MethodType(layer, module)
    for module in modules(model, v4.DeepseekV4HyperConnection):
        module.forward = MethodType(hyper_connection, module)
    for module in modules(model, v4.DeepseekV4Attention):
        module.forward = MethodType(attention, module)
        module.index_loss = None
    for module in modules(model, v4.DeepseekV4Indexer):
        module.forward = MethodType(indexer, module)
        module.scorer.register_forward_hook(keep_scores)
    for module in modules(model, v4.DeepseekV4TopKRouter):
        module.load = torch.zeros(module.num_experts)
        module.register_forward_hook(count_load)
    request_index_loss(model, False)


def modules(model: DeepseekV4ForCausalLM, kind: type[nn.Module]) -> Iterator[Any]:
    return (module for module in model.modules() if isinstance(module, kind))


def indexer(self: Any, hidden_states: Tensor, residual: Tensor, *args: Any) -> Tensor:
    """Run the indexer on detached inputs: it is trained by its own loss only, and that loss trains nothing else."""
    with torch.set_grad_enabled(self.wants_index_loss):
        chosen: Tensor = v4.DeepseekV4Indexer.forward(self, hidden_states.detach(), residual.detach(), *args)
        return chosen


def keep_scores(module: Any, _args: tuple[Any, ...], scores: Tensor) -> None:
    module.scores = scores  # [B, S, T], before the causal mask


def count_load(module: Any, _args: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    module.load += torch.bincount(output[2].reshape(-1), minlength=module.num_experts)


def balance(model: DeepseekV4ForCausalLM) -> None:
    """Move each routing bias against its expert's load, as V4 does instead of a balancing loss."""
    for module in modules(model, v4.DeepseekV4TopKRouter):
        module.e_score_correction_bias += BIAS_STEP * torch.sign(module.load.mean() - module.load)
        module.load.zero_()


def request_index_loss(model: DeepseekV4ForCausalLM, wanted: bool) -> None:
    for kind in (v4.DeepseekV4Attention, v4.DeepseekV4Indexer):
        for module in modules(model, kind):
            module.wants_index_loss = wanted


def index_loss(model: DeepseekV4ForCausalLM) -> Tensor:
    losses = [module.index_loss for module in modules(model, v4.DeepseekV4Attention)]
    return torch.stack([loss for loss in losses if loss is not None]).sum()


def attention(self: Any, hidden_states: Tensor, position_embeddings: Any, position_ids: Tensor, **_: Any) -> Any:
    batch, length, _width = hidden_states.shape
    cos, sin = position_embeddings[self.rope_layer_type]
    residual = self.q_a_norm(self.q_a_proj(hidden_states))
    query = self.q_b_proj(residual).view(batch, length, self.num_heads, self.head_dim)
    query = normed_and_turned(query, cos, sin, self.scaling)  # [B, S, H, d]
    raw = turned(self.kv_norm(self.kv_proj(hidden_states)).unsqueeze(2), cos, sin).squeeze(2)  # [B, S, d]

    entries, bias = None, None
    if self.compressor is not None:
        entries, bias = self.compressor(hidden_states, residual, position_ids, None, self.layer_idx)
        entries, bias = entries.squeeze(1), bias.transpose(1, 2)  # [B, T, d], [B, S, 1, T]
    output, entry_logits = banded(query, raw, entries, bias, self.sinks, self.sliding_window)
    if self.layer_type == "compressed_sparse_attention" and self.wants_index_loss:
        self.index_loss = imitation_loss(self.compressor.indexer.scorer.scores, entry_logits, position_ids)

    output = turned(output, cos, -sin)
    grouped = self.o_a_proj(output.reshape(batch, length, self.config.o_groups, -1)).flatten(2)
    return self.o_b_proj(grouped), None


def banded(
    query: Tensor, raw: Tensor, entries: Tensor | None, bias: Tensor | None, sinks: Tensor, window: int
) -> tuple[Tensor, Tensor | None]:
    """Attention with one softmax over the window's raw rows, the entries and the sink.

    Returns the output and the unmasked logits of the entries, or None without entries.
    """
    batch, length, heads, width = query.shape
    blocks = length // window
    own = raw.view(batch, blocks, window, width)
    rows = torch.cat([F.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1], own], dim=2)  # [B, blocks, 2W, d]
    near = query.view(batch, blocks, window * heads, width) @ rows.transpose(-1, -2)
    near = near.view(batch, blocks, window, heads, 2 * window)
    if entries is None or bias is None:
        near = near_softmax(near, sinks)
        output = near.view(batch, blocks, window * heads, 2 * window) @ rows
        return output.view(query.shape), None
    far = (query.view(batch, length * heads, width) @ entries.transpose(-1, -2)).view(batch, length, heads, -1)
    near_weights, far_weights = joint_softmax(near, far, bias, sinks)
    output = near_weights.view(batch, blocks, window * heads, 2 * window) @ rows
    far_output = far_weights.view(batch, length * heads, -1) @ entries
    return output.view(query.shape) + far_output.view(query.shape), far


def in_window(near: Tensor) -> Tensor:
    """Mask logits [B, blocks, W, H, 2W] of a block's queries and the rows of its own and the previous block."""
    _, blocks, window, _, _ = near.shape
    block = torch.arange(blocks).view(blocks, 1, 1, 1)
    query = torch.arange(window).view(1, window, 1, 1)
    key = torch.arange(2 * window).view(1, 1, 1, 2 * window)
    seen = (key > query) & (key <= query + window) & ((block > 0) | (key >= window))
    return near.float().masked_fill(~seen, float("-inf"))


@torch.compile(dynamic=False)
def near_softmax(near: Tensor, sinks: Tensor) -> Tensor:
    logits = in_window(near)
    sink = sinks.view(1, 1, 1, -1, 1)
    top = torch.maximum(logits.amax(-1, keepdim=True), sink).detach()
    weights = torch.exp(logits - top)
    return (weights / (weights.sum(-1, keepdim=True) + torch.exp(sink - top))).to(near.dtype)


@torch.compile(dynamic=False)
def joint_softmax(near: Tensor, far: Tensor, bias: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    near_logits = in_window(near).view(*far.shape[:3], -1)
    far_logits = far.float() + bias
    sink = sinks.view(1, 1, -1, 1)
    top = torch.maximum(near_logits.amax(-1, keepdim=True), far_logits.amax(-1, keepdim=True))
    top = torch.maximum(top, sink).detach()
    near_weights, far_weights = torch.exp(near_logits - top), torch.exp(far_logits - top)
    total = near_weights.sum(-1, keepdim=True) + far_weights.sum(-1, keepdim=True) + torch.exp(sink - top)
    return (near_weights / total).to(near.dtype), (far_weights / total).to(near.dtype)


@torch.compile(dynamic=False)
def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Interleaved RoPE on the last channels of [B, S, H, d]."""
    return rope(x.float(), cos, sin).to(x.dtype)


@torch.compile(dynamic=False)
def normed_and_turned(x: Tensor, cos: Tensor, sin: Tensor, scale: float) -> Tensor:
    normed = x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)
    return (rope(normed, cos, sin) * scale).to(x.dtype)


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    plain, pairs = x[..., : -2 * cos.shape[-1]], x[..., -2 * cos.shape[-1] :]
    pairs = pairs.unflatten(-1, (-1, 2))
    cos, sin = cos.unsqueeze(2), sin.unsqueeze(2)
    first, second = pairs[..., 0], pairs[..., 1]
    turned_pairs = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1)
    return torch.cat([plain, turned_pairs.flatten(-2)], dim=-1)


def imitation_loss(scores: Tensor, entry_logits: Tensor | None, position_ids: Tensor) -> Tensor:
    """Cross entropy of the indexer's scores against the mean attention of all heads to the entries."""
    if entry_logits is None:
        raise ValueError("the sequence is shorter than one compression window, so it has no entries to index")
    count = scores.shape[-1]
    hidden = torch.arange(count).view(1, 1, count) >= ((position_ids + 1) // 4).unsqueeze(-1)  # [1, S, T]
    with torch.no_grad():
        target = entry_logits.float().masked_fill(hidden.unsqueeze(2), -1e9).softmax(dim=-1).mean(dim=2)
    scores = scores.float().masked_fill(hidden, -1e9).log_softmax(dim=-1)
    losses = -(target * scores).sum(dim=-1)
    return losses[:, 4:].mean()  # without the first queries, which have at most one entry


def hyper_connection(self: Any, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, count, width = streams.shape
    flat = streams.reshape(batch * length, count, width)
    post, comb, collapsed = mix_in(flat, self.fn, self.scale, self.base, self.hc_sinkhorn_iters)
    return post, comb, collapsed.view(batch, length, width)


def layer(self: Any, hidden_states: Tensor, input_ids: Tensor | None = None, **kwargs: Any) -> Tensor:
    shape = hidden_states.shape
    streams = hidden_states.view(-1, *shape[2:])
    post, comb, collapsed = self.attn_hc(hidden_states)
    output, _ = self.self_attn(self.input_layernorm(collapsed), **kwargs)
    streams = mix_out(streams, output.reshape(-1, shape[-1]), post, comb)
    post, comb, collapsed = self.ffn_hc(streams.view(shape))
    output = self.mlp(self.post_attention_layernorm(collapsed), input_ids=input_ids)
    return mix_out(streams, output.reshape(-1, shape[-1]), post, comb).view(shape)


@torch.compile(dynamic=False)
def mix_in(streams: Tensor, fn: Tensor, scale: Tensor, base: Tensor, rounds: int) -> tuple[Tensor, Tensor, Tensor]:
    """Hyper-connection of streams [N, 4, D]. Returns post [4, N], comb [4, 4, N] and the layer's input [N, D]."""
    eps = 1e-6
    count = streams.shape[1]
    flat = streams.flatten(1)
    norm = torch.rsqrt(flat.square().mean(-1) + eps)
    mixes = fn @ flat.t() * norm
    pre = torch.sigmoid(mixes[:count] * scale[0] + base[:count, None]) + eps
    post = 2 * torch.sigmoid(mixes[count : 2 * count] * scale[1] + base[count : 2 * count, None])
    logits = mixes[2 * count :] * scale[2] + base[2 * count :, None]
    comb = sinkhorn(logits.view(count, count, -1), rounds, eps)
    collapsed = (pre.t().unsqueeze(-1) * streams).sum(1)
    return post, comb, collapsed


@torch.compile(dynamic=False)
def mix_out(streams: Tensor, output: Tensor, post: Tensor, comb: Tensor) -> Tensor:
    """X'[k] = post[k] * output + sum over j of comb[j, k] * X[j]."""
    count = streams.shape[1]
    mixed = []
    for k in range(count):
        stream = post[k].unsqueeze(-1) * output
        for j in range(count):
            stream = stream + comb[j, k].unsqueeze(-1) * streams[:, j]
        mixed.append(stream)
    return torch.stack(mixed, dim=1)


def sinkhorn(logits: Tensor, rounds: int, eps: float) -> Tensor:
    comb = logits.softmax(dim=1) + eps
    comb = comb / (comb.sum(dim=0, keepdim=True) + eps)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(dim=1, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=0, keepdim=True) + eps)
    return comb
