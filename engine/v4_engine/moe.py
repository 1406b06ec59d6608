"""Mixture of experts (reference 2.10): sqrtsoftplus or hash routing, clamped SwiGLU experts, one shared expert."""

import torch
import torch.nn.functional as F
from torch import Tensor

from v4_core.config import ModelConfig
from v4_engine.kernels import Kernels
from v4_engine.params import Layer


def moe(k: Kernels, c: ModelConfig, layer: Layer, x: Tensor, ids: Tensor) -> Tensor:
    """Return the experts' output [S, D] for normed x [S, D]. In hash layers, ids [S] choose the experts."""
    logits = x.to(layer.gate.dtype) @ layer.gate.T
    fixed = None if layer.tid2eid is None else layer.tid2eid[ids]
    experts, weights = k.route(logits, layer.gate_bias, fixed, c.experts_per_token, c.routed_scaling_factor)
    flat = experts.flatten()
    by_expert = flat.argsort(stable=True)
    every = torch.arange(c.n_routed_experts, device=x.device)
    ends = torch.searchsorted(flat[by_expert], every, right=True, out_int32=True)
    hidden = k.grouped_linear(x[by_expert // c.experts_per_token], layer.w13, ends)
    routed = k.grouped_linear(k.swiglu(hidden, c.swiglu_limit), layer.w2, ends)
    back = torch.empty_like(by_expert).scatter_(0, by_expert, torch.arange(flat.shape[0], device=x.device))
    routed = routed[back].view(*experts.shape, -1).to(weights.dtype)
    shared = F.linear(k.swiglu(F.linear(x, layer.shared_w13), c.swiglu_limit), layer.shared_w2)
    return ((weights.unsqueeze(1) @ routed).squeeze(1) + shared).to(x.dtype)
