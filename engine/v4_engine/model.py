"""The forward of DeepSeek V4 over one step's ragged batch (reference section 2). Knows no sequence and no sampling."""

import torch
from torch import Tensor

from v4_core.config import ModelConfig
from v4_engine import hyper
from v4_engine.attention import Attention, Turns
from v4_engine.inputs import StepInputs
from v4_engine.kernels import for_device
from v4_engine.moe import moe
from v4_engine.params import Params
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
        """Run the step's tokens, updating the cache; logits [slices, vocab] in `acc` of each slice's last token."""
        c, k, p = self.config, self._kernels, self._params
        turns = {compressed: self._turns(inputs, compressed) for compressed in {bool(r) for r in c.ratios}}
        streams = p.embed[inputs.ids].unsqueeze(1).repeat(1, c.hc_mult, 1)
        for index, layer in enumerate(p.layers):
            x, post, comb = hyper.pre(k, c, streams, layer.attn_hc)
            x = k.rms_norm(x, layer.attn_norm, c.rms_norm_eps)
            out = self._attention(index, layer, x, inputs, turns[bool(layer.ratio)])
            streams = k.hyper_post(out, streams, post, comb)
            x, post, comb = hyper.pre(k, c, streams, layer.ffn_hc)
            out = moe(k, c, layer, k.rms_norm(x, layer.ffn_norm, c.rms_norm_eps), inputs.ids)
            streams = k.hyper_post(out, streams, post, comb)
        x = hyper.head(c, streams[inputs.last], p.head_hc)
        return k.rms_norm(x, p.norm, c.rms_norm_eps).to(p.head.dtype) @ p.head.T

    def _turns(self, inputs: StepInputs, compressed: bool) -> Turns:
        positions = (inputs.positions, inputs.c4.position, inputs.c128.position)
        return Turns(*(self._rope.angles(p, compressed) for p in positions))
