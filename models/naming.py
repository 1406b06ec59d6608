"""Translation between DeepSeek's tensor names and those of transformers, in both directions."""

from __future__ import annotations

import re

import torch
from torch import Tensor

TOP = {
    "model.embed_tokens.weight": "embed.weight",
    "lm_head.weight": "head.weight",
    "model.norm.weight": "norm.weight",
    "model.hc_head.hc_fn": "hc_head_fn",
    "model.hc_head.hc_base": "hc_head_base",
    "model.hc_head.hc_scale": "hc_head_scale",
}

# transformers -> DeepSeek, within a layer; the first match wins
PARTS = [
    ("self_attn.compressor.indexer.scorer.weights_proj", "attn.indexer.weights_proj"),
    ("self_attn.compressor.indexer.q_b_proj", "attn.indexer.wq_b"),
    ("self_attn.compressor.indexer.position_bias", "attn.indexer.compressor.ape"),
    ("self_attn.compressor.indexer.kv_proj", "attn.indexer.compressor.wkv"),
    ("self_attn.compressor.indexer.gate_proj", "attn.indexer.compressor.wgate"),
    ("self_attn.compressor.indexer.kv_norm", "attn.indexer.compressor.norm"),
    ("self_attn.compressor.position_bias", "attn.compressor.ape"),
    ("self_attn.compressor.kv_proj", "attn.compressor.wkv"),
    ("self_attn.compressor.gate_proj", "attn.compressor.wgate"),
    ("self_attn.compressor.kv_norm", "attn.compressor.norm"),
    ("self_attn.sinks", "attn.attn_sink"),
    ("self_attn.q_a_proj", "attn.wq_a"),
    ("self_attn.q_a_norm", "attn.q_norm"),
    ("self_attn.q_b_proj", "attn.wq_b"),
    ("self_attn.kv_proj", "attn.wkv"),
    ("self_attn.kv_norm", "attn.kv_norm"),
    ("self_attn.o_a_proj", "attn.wo_a"),
    ("self_attn.o_b_proj", "attn.wo_b"),
    ("mlp.gate.e_score_correction_bias", "ffn.gate.bias"),
    ("mlp.gate.", "ffn.gate."),
    ("mlp.shared_experts.gate_proj", "ffn.shared_experts.w1"),
    ("mlp.shared_experts.up_proj", "ffn.shared_experts.w3"),
    ("mlp.shared_experts.down_proj", "ffn.shared_experts.w2"),
    ("attn_hc.", "hc_attn_"),
    ("ffn_hc.", "hc_ffn_"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
]


def renamed(rest: str, forward: bool) -> str:
    for theirs, ours in PARTS:
        old, new = (theirs, ours) if forward else (ours, theirs)
        if rest.startswith(old):
            return new + rest.removeprefix(old)
    raise KeyError(rest)


def to_deepseek(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename tensors and split the experts' stacked weights: `gate_up_proj` is w1 above w3 for each expert."""
    tensors = {}
    for name, tensor in state.items():
        if name in TOP:
            tensors[TOP[name]] = tensor
            continue
        prefix, rest = split_layer(name.removeprefix("model."))
        if rest == "mlp.experts.gate_up_proj":
            for expert, both in enumerate(tensor):
                tensors[f"{prefix}ffn.experts.{expert}.w1.weight"], up = both.chunk(2)
                tensors[f"{prefix}ffn.experts.{expert}.w3.weight"] = up
        elif rest == "mlp.experts.down_proj":
            for expert, down in enumerate(tensor):
                tensors[f"{prefix}ffn.experts.{expert}.w2.weight"] = down
        else:
            tensors[prefix + renamed(rest, forward=True)] = tensor
    return {name: tensor.contiguous().clone() for name, tensor in tensors.items()}


def to_transformers(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    top = {ours: theirs for theirs, ours in TOP.items()}
    state = {}
    for name, tensor in tensors.items():
        if name in top:
            state[top[name]] = tensor
            continue
        prefix, rest = split_layer(name)
        if not rest.startswith("ffn.experts."):
            state["model." + prefix + renamed(rest, forward=False)] = tensor
        elif rest == "ffn.experts.0.w1.weight":
            state.update(stacked(tensors, prefix))
    return state


def stacked(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    count = sum(name.startswith(f"{prefix}ffn.experts.") and name.endswith(".w2.weight") for name in tensors)
    w1, w2, w3 = (
        [tensors[f"{prefix}ffn.experts.{expert}.w{part}.weight"] for expert in range(count)] for part in (1, 2, 3)
    )
    both = [torch.cat([gate, up]) for gate, up in zip(w1, w3, strict=True)]
    experts = f"model.{prefix}mlp.experts."
    return {experts + "gate_up_proj": torch.stack(both), experts + "down_proj": torch.stack(w2)}


def split_layer(name: str) -> tuple[str, str]:
    match = re.fullmatch(r"(layers\.\d+\.)(.+)", name)
    if match is None:
        raise KeyError(name)
    return match[1], match[2]
