"""Hyper-connections (reference 2.2): collapse M residual streams into a layer's input, mix its output back in."""

from torch import Tensor

from v4_core.config import ModelConfig
from v4_engine.kernels import Kernels
from v4_engine.params import Hyper


def _mixes(c: ModelConfig, streams: Tensor, w: Hyper) -> Tensor:
    """Projected, scaled and shifted mixing logits [S, rows of fn] in `acc`; the norm factor comes after the product."""
    flat = streams.flatten(1).to(w.fn.dtype)
    factor = (flat.square().mean(-1, keepdim=True) + c.rms_norm_eps).rsqrt()
    return (flat @ w.fn.T) * factor * w.scale[w.scale_index] + w.base


def _collapse(pre: Tensor, streams: Tensor) -> Tensor:
    """Sum of streams [S, M, D] weighted by pre [S, M]: [S, D] in the streams' type."""
    return (pre.unsqueeze(1) @ streams.to(pre.dtype)).squeeze(1).to(streams.dtype)


def pre(k: Kernels, c: ModelConfig, streams: Tensor, w: Hyper) -> tuple[Tensor, Tensor, Tensor]:
    """Streams [S, M, D] -> sublayer input [S, D], post [S, M], comb [S, M, M] (first index = source stream)."""
    m = c.hc_mult
    mixes = _mixes(c, streams, w)
    weights = mixes[:, : 2 * m].sigmoid()
    comb = k.sinkhorn(mixes[:, 2 * m :].unflatten(1, (m, m)), c.hc_sinkhorn_iters, c.hc_eps)
    return _collapse(weights[:, :m] + c.hc_eps, streams), 2 * weights[:, m:], comb


def post(out: Tensor, streams: Tensor, weight: Tensor, comb: Tensor) -> Tensor:
    """Streams [S, M, D] after a sublayer gave out [S, D]; `streams` are those that entered `pre`."""
    mixed = comb.transpose(1, 2) @ streams.to(comb.dtype)
    return mixed.addcmul_(weight.unsqueeze(-1), out.to(comb.dtype).unsqueeze(1)).to(streams.dtype)


def head(c: ModelConfig, streams: Tensor, w: Hyper) -> Tensor:
    """The one collapse behind the last layer: [S, M, D] -> [S, D]."""
    return _collapse(_mixes(c, streams, w).sigmoid() + c.hc_eps, streams)
