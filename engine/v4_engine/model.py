"""The forward pass of DeepSeek V4 over one step's ragged batch (reference section 2).

Hyper-connections (reference 2.2) join the layers: M residual streams collapse into the input of a sublayer, and the
sublayer's output is mixed back into the streams. The model knows no sequences and no sampling.
"""

import torch
from torch import Tensor

from v4_core.config import ModelConfig
from v4_engine.attention import Attention, StepAngles
from v4_engine.inputs import StepInputs
from v4_engine.kernels import for_device
from v4_engine.moe import moe
from v4_engine.params import Hyper, Params
from v4_engine.rope import Rope
from v4_engine.stores import CacheMemory


class V4Model:
    """One model over one cache."""

    def __init__(self, config: ModelConfig, params: Params, memory: CacheMemory) -> None:
        device = params.embed.device
        self.config = config
        self._params = params
        self._kernels = for_device(device, params.embed.dtype)
        self._rope = Rope(config, device, params.norm.dtype)
        self._attention = Attention(config, self._kernels, memory)

    @torch.inference_mode()
    def forward(self, inputs: StepInputs) -> Tensor:
        """Compute the step's tokens and update the cache.

        Returns logits [slices, vocab] in `acc` of each slice's last token.
        """
        c, k, p = self.config, self._kernels, self._params
        angles = {compressed: self._angles(inputs, compressed) for compressed in {bool(r) for r in c.ratios}}
        streams = p.embed[inputs.ids].unsqueeze(1).repeat(1, c.hc_mult, 1)
        for index, layer in enumerate(p.layers):
            x, post, comb = self._collapse(streams, layer.attn_hc)
            x = k.rms_norm(x, layer.attn_norm, c.rms_norm_eps)
            out = self._attention(index, layer, x, inputs, angles[bool(layer.ratio)])
            streams = k.hyper_post(out, streams, post, comb)
            x, post, comb = self._collapse(streams, layer.ffn_hc)
            out = moe(k, c, layer, k.rms_norm(x, layer.ffn_norm, c.rms_norm_eps), inputs.ids)
            streams = k.hyper_post(out, streams, post, comb)
        x = _head(c, streams[inputs.last], p.head_hc)
        return k.rms_norm(x, p.norm, c.rms_norm_eps).to(p.head.dtype) @ p.head.T

    def _angles(self, inputs: StepInputs, compressed: bool) -> StepAngles:
        positions = (inputs.positions, inputs.c4.position, inputs.c128.position)
        return StepAngles(*(self._rope.angles(p, compressed) for p in positions))

    def _collapse(self, streams: Tensor, w: Hyper) -> tuple[Tensor, Tensor, Tensor]:
        """Collapse streams [S, M, D] into (sublayer input [S, D], post [S, M], comb [S, M, M])."""
        c = self.config
        mixes = streams.flatten(1).to(w.fn.dtype) @ w.fn.T
        return self._kernels.hyper_pre(streams, mixes, w.scale, w.base, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps)


def _head(c: ModelConfig, streams: Tensor, w: Hyper) -> Tensor:
    """Collapse the streams after the last layer: [S, M, D] -> [S, D]."""
    flat = streams.flatten(1).to(w.fn.dtype)
    factor = (flat.square().mean(-1, keepdim=True) + c.rms_norm_eps).rsqrt()
    weights = ((flat @ w.fn.T) * factor * w.scale + w.base).sigmoid() + c.hc_eps
    return (weights.unsqueeze(1) @ streams.to(weights.dtype)).squeeze(1).to(streams.dtype)
