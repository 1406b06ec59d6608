"""Hyper-connections (reference 2.2): M residual streams collapse into a sublayer's input; its output is mixed in."""

from torch import Tensor

from v4_core.config import ModelConfig
from v4_engine.kernels import Kernels
from v4_engine.params import Hyper


def pre(k: Kernels, c: ModelConfig, streams: Tensor, w: Hyper) -> tuple[Tensor, Tensor, Tensor]:
    """Streams [S, M, D] -> sublayer input [S, D], post [S, M], comb [S, M, M]."""
    mixes = streams.flatten(1).to(w.fn.dtype) @ w.fn.T
    return k.hyper_pre(streams, mixes, w.scale, w.base, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps)


def head(c: ModelConfig, streams: Tensor, w: Hyper) -> Tensor:
    """The one collapse behind the last layer: [S, M, D] -> [S, D]."""
    flat = streams.flatten(1).to(w.fn.dtype)
    factor = (flat.square().mean(-1, keepdim=True) + c.rms_norm_eps).rsqrt()
    weights = ((flat @ w.fn.T) * factor * w.scale + w.base).sigmoid() + c.hc_eps
    return (weights.unsqueeze(1) @ streams.to(weights.dtype)).squeeze(1).to(streams.dtype)
