"""Mixture of experts (reference 2.10): sqrtsoftplus or hash routing, clamped SwiGLU experts, one shared expert."""

import torch
import torch.nn.functional as F
from torch import Tensor

from v4_core.config import ModelConfig
from v4_engine.kernels import Kernels
from v4_engine.params import Layer


def _activate(c: ModelConfig, gate_up: Tensor, acc: torch.dtype) -> Tensor:
    gate, up = gate_up.to(acc).chunk(2, dim=-1)
    limit = c.swiglu_limit
    return (F.silu(gate.clamp(max=limit)) * up.clamp(-limit, limit)).to(gate_up.dtype)


def route(c: ModelConfig, layer: Layer, x: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Experts [S, K] int64 of each token and their weights [S, K] in `acc`. Ties go to the lower expert."""
    scores = F.softplus(x.to(layer.gate.dtype) @ layer.gate.T).sqrt()
    if layer.tid2eid is not None:
        experts = layer.tid2eid[ids]
    else:
        biased = scores if layer.gate_bias is None else scores + layer.gate_bias
        experts = biased.sort(dim=-1, descending=True, stable=True).indices[:, : c.experts_per_token]
    weights = scores.gather(1, experts)
    return experts, weights / weights.sum(-1, keepdim=True) * c.routed_scaling_factor


def moe(k: Kernels, c: ModelConfig, layer: Layer, x: Tensor, ids: Tensor) -> Tensor:
    """Output [S, D] of the experts for normed x [S, D]; ids [S] pick experts in hash layers."""
    acc = layer.gate.dtype
    experts, weights = route(c, layer, x, ids)
    flat = experts.flatten()
    by_expert = flat.argsort(stable=True)
    ends = torch.bincount(flat, minlength=c.n_routed_experts).cumsum(0, dtype=torch.int32)
    hidden = k.grouped_linear(x[by_expert // c.experts_per_token], layer.w13, ends)
    routed = k.grouped_linear(_activate(c, hidden, acc), layer.w2, ends)
    back = torch.empty_like(by_expert).scatter_(0, by_expert, torch.arange(flat.shape[0], device=x.device))
    routed = routed[back].view(*experts.shape, -1).to(acc)
    shared = F.linear(_activate(c, F.linear(x, layer.shared_w13), acc), layer.shared_w2)
    return ((weights.unsqueeze(1) @ routed).squeeze(1) + shared).to(x.dtype)
