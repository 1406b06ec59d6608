"""A faster training forward for transformers' DeepseekV4ForCausalLM on a CPU, equal to its own up to rounding.

Knows which sums of the model are wasteful in eager mode: attention over the whole square where only a band of
`sliding_window` raw rows and the compressed entries count, and twenty Sinkhorn rounds over 4x4 matrices that
lie innermost in memory. Also knows what transformers leaves untrained: the indexer, whose choice of entries
has no gradient, and the routing bias. `check` compares with the untouched forward.
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

NO_MASK = {"banded": None}  # the model builds a square mask unless it is given a dict of masks
BIAS_STEP = 1e-3


def install(model: DeepseekV4ForCausalLM) -> None:
    """Replace the forward of attention and hyper-connections, and start recording what `balance` needs."""
    for module in model.modules():
        if isinstance(module, v4.DeepseekV4Attention):
            module.forward = MethodType(attention, module)
            module.index_loss = None
            module.wants_index_loss = False
        elif isinstance(module, v4.DeepseekV4HyperConnection):
            module.forward = MethodType(hyper_connection, module)
        elif isinstance(module, v4.DeepseekV4Indexer):
            module.register_forward_pre_hook(detach_inputs)
            module.scorer.register_forward_hook(keep_scores)
        elif isinstance(module, v4.DeepseekV4TopKRouter):
            module.load = torch.zeros(module.num_experts)
            module.register_forward_hook(count_load)


def detach_inputs(_module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The indexer learns from its own loss alone, and that loss reaches nothing else."""
    return (args[0].detach(), args[1].detach(), *args[2:])


def keep_scores(module: nn.Module, _args: tuple[Any, ...], scores: Tensor) -> None:
    module.scores = scores  # [B, S, T], before the causal mask


def count_load(module: nn.Module, _args: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    module.load += torch.bincount(output[2].reshape(-1), minlength=module.num_experts)


def balance(model: DeepseekV4ForCausalLM) -> list[Tensor]:
    """Move each routing bias against its expert's load, as V4 does in place of a balancing loss."""
    shares = []
    for module in model.modules():
        if isinstance(module, v4.DeepseekV4TopKRouter):
            module.e_score_correction_bias += BIAS_STEP * torch.sign(module.load.mean() - module.load)
            shares.append(module.load / module.load.sum())
            module.load = torch.zeros_like(module.load)
    return shares


def request_index_loss(model: DeepseekV4ForCausalLM, wanted: bool) -> None:
    for module in attentions(model):
        module.wants_index_loss = wanted


def index_loss(model: DeepseekV4ForCausalLM) -> Tensor:
    return torch.stack([m.index_loss for m in attentions(model) if m.index_loss is not None]).sum()


def attentions(model: DeepseekV4ForCausalLM) -> Iterator[Any]:
    return (m for m in model.modules() if isinstance(m, v4.DeepseekV4Attention))


def window_bias(block: int, blocks: int) -> Tensor:
    """[blocks, block, 1, 2 * block]: a query of a block sees the `block` rows that end with its own."""
    query = torch.arange(block).view(1, block, 1, 1)
    key = torch.arange(2 * block).view(1, 1, 1, 2 * block)
    seen = (key > query) & (key <= query + block)
    first = torch.arange(blocks).view(blocks, 1, 1, 1) == 0
    seen = seen & ~(first & (key < block))
    return torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))


def attention(self: Any, hidden_states: Tensor, position_embeddings: Any, position_ids: Tensor, **_: Any) -> Any:
    batch, length, _width = hidden_states.shape
    cos, sin = position_embeddings[self.rope_layer_type]
    residual = self.q_a_norm(self.q_a_proj(hidden_states))
    query = self.q_b_norm(self.q_b_proj(residual).view(batch, length, self.num_heads, self.head_dim))
    query = v4.apply_rotary_pos_emb(query, cos, sin, unsqueeze_dim=2) * self.scaling  # [B, S, H, d]
    raw = self.kv_norm(self.kv_proj(hidden_states)).unsqueeze(2)
    raw = v4.apply_rotary_pos_emb(raw, cos, sin, unsqueeze_dim=2).squeeze(2)  # [B, S, d]

    entries, bias = None, None
    if self.compressor is not None:
        entries, bias = self.compressor(hidden_states, residual, position_ids, None, self.layer_idx)
        entries = entries.squeeze(1)  # [B, T, d]
    output, entry_logits = banded(query, raw, entries, bias, self.sinks, self.sliding_window)
    if self.layer_type == "compressed_sparse_attention" and self.wants_index_loss:
        self.index_loss = imitation_loss(self.compressor.indexer.scorer.scores, entry_logits, position_ids)

    output = v4.apply_rotary_pos_emb(output, cos, -sin, unsqueeze_dim=2)
    grouped = self.o_a_proj(output.reshape(batch, length, self.config.o_groups, -1)).flatten(2)
    return self.o_b_proj(grouped), None


def banded(
    query: Tensor, raw: Tensor, entries: Tensor | None, bias: Tensor | None, sinks: Tensor, window: int
) -> tuple[Tensor, Tensor | None]:
    """One softmax over the raw rows of the window, the entries and the sink; also the entries' unmasked logits."""
    batch, length, heads, width = query.shape
    blocks = length // window
    own = raw.view(batch, blocks, window, width)
    rows = torch.cat([F.pad(own, (0, 0, 0, 0, 1, 0))[:, :-1], own], dim=2)  # [B, blocks, 2W, d]
    logits = query.view(batch, blocks, window * heads, width) @ rows.transpose(-1, -2)
    logits = logits.view(batch, blocks, window, heads, 2 * window) + window_bias(window, blocks)
    parts = [logits.view(batch, length, heads, 2 * window)]
    entry_logits = None
    if entries is not None and bias is not None:
        entry_logits = (query.view(batch, length * heads, width) @ entries.transpose(-1, -2)).view(
            batch, length, heads, -1
        )
        parts.append(entry_logits + bias.transpose(1, 2))  # bias [B, 1, S, T] -> [B, S, 1, T]
    parts.append(sinks.view(1, 1, heads, 1).expand(batch, length, heads, 1))
    weights = torch.cat(parts, dim=-1).softmax(dim=-1)
    near = weights[..., : 2 * window].reshape(batch, blocks, window * heads, 2 * window)
    output = (near @ rows).view(batch, length, heads, width)
    if entries is not None and bias is not None:
        far = weights[..., 2 * window : -1].reshape(batch, length * heads, -1)
        output = output + (far @ entries).view(batch, length, heads, width)
    return output, entry_logits


def imitation_loss(scores: Tensor, entry_logits: Tensor | None, position_ids: Tensor) -> Tensor:
    """Cross entropy of the indexer's scores against the attention all heads together pay to the entries."""
    if entry_logits is None:
        raise ValueError("a sequence of less than one window has no entries to index")
    count = scores.shape[-1]
    hidden = torch.arange(count).view(1, 1, count) >= ((position_ids + 1) // 4).unsqueeze(-1)  # [1, S, T]
    with torch.no_grad():
        target = entry_logits.masked_fill(hidden.unsqueeze(2), -1e9).softmax(dim=-1).mean(dim=2)
    scores = scores.masked_fill(hidden, -1e9).log_softmax(dim=-1)
    losses = -(target * scores).sum(dim=-1)
    return losses[:, 4:].mean()  # the first queries have at most one entry


def hyper_connection(self: Any, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """As transformers, with tokens innermost: [4, 4, tokens] rather than [tokens, 4, 4]."""
    batch, length, count, _width = streams.shape
    mixes = F.linear(self.input_norm(streams.flatten(2)), self.fn).view(batch * length, -1).t()
    scale = self.scale.repeat_interleave(torch.tensor([count, count, count * count]))
    mixes = mixes * scale[:, None] + self.base[:, None]
    pre = torch.sigmoid(mixes[:count]) + self.hc_eps
    post = 2 * torch.sigmoid(mixes[count : 2 * count])
    comb = sinkhorn(mixes[2 * count :].reshape(count, count, -1), self.hc_sinkhorn_iters, self.hc_eps)
    collapsed = torch.matmul(pre.t().reshape(batch, length, 1, count), streams).squeeze(2)
    comb = comb.permute(2, 0, 1).reshape(batch, length, count, count)
    return post.t().reshape(batch, length, count), comb, collapsed


def sinkhorn(logits: Tensor, rounds: int, eps: float) -> Tensor:
    comb = logits.softmax(dim=1) + eps
    comb = comb / (comb.sum(dim=0, keepdim=True) + eps)
    for _ in range(rounds - 1):
        comb = comb / (comb.sum(dim=1, keepdim=True) + eps)
        comb = comb / (comb.sum(dim=0, keepdim=True) + eps)
    return comb
