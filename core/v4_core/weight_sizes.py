"""Computes the bytes of a checkpoint's tensors from the model's config. Reads no file.

Quantised checkpoints hold routed experts in fp4 with one scale per 32 inputs, and other projections in fp8 with one
scale per 128 x 128 values. All other tensors have the config's dtype or are fp32.
"""

from dataclasses import dataclass

from v4_core.config import C4, SWA, ModelConfig
from v4_core.formats import ITEM_BYTES

_FP32, _INT64 = 4, 8
_FP8_BLOCK, _FP4_BLOCK = 128, 32


@dataclass(frozen=True)
class WeightBytes:
    """Bytes of a whole checkpoint, including draft layers."""

    experts: int  # routed experts, which are distributed over devices
    rest: int  # all other tensors

    @property
    def total(self) -> int:
        """Bytes of all tensors."""
        return self.experts + self.rest


def weight_bytes(c: ModelConfig) -> WeightBytes:
    """Computes the bytes of a checkpoint with this config."""
    layers = sum(_layer(c, ratio, hashed=i < c.num_hash_layers) for i, ratio in enumerate(c.ratios))
    draft = _layer(c, SWA, hashed=False) + 2 * _linear(c, c.hidden_size, c.hidden_size)
    draft += _plain(c, 3 * c.hidden_size) + _head_connection(c)
    ends = _plain(c, 2 * c.vocab_size * c.hidden_size + c.hidden_size) + _head_connection(c)
    experts = c.n_routed_experts * _routed_expert(c)
    return WeightBytes(
        experts=(c.num_layers + c.draft_layers) * experts,
        rest=layers + ends + c.draft_layers * draft,
    )


def _plain(c: ModelConfig, numbers: int) -> int:
    return numbers * ITEM_BYTES[c.dtype]


def _linear(c: ModelConfig, outputs: int, inputs: int) -> int:
    if not c.quantised:
        return _plain(c, outputs * inputs)
    return outputs * inputs + -(-outputs // _FP8_BLOCK) * -(-inputs // _FP8_BLOCK)


def _routed_expert(c: ModelConfig) -> int:
    numbers = 3 * c.moe_intermediate_size * c.hidden_size
    return numbers // 2 + numbers // _FP4_BLOCK if c.quantised else _plain(c, numbers)


def _layer(c: ModelConfig, ratio: int, *, hashed: bool) -> int:
    """Bytes of a layer without its routed experts; `hashed` layers choose their experts by token id."""
    choice = c.vocab_size * c.experts_per_token * _INT64 if hashed else c.n_routed_experts * _FP32
    gate = _plain(c, c.n_routed_experts * c.hidden_size) + choice
    wide, narrow = c.moe_intermediate_size, c.hidden_size
    shared = 2 * _linear(c, wide, narrow) + _linear(c, narrow, wide)
    mixes = (2 + c.hc_mult) * c.hc_mult
    connections = 2 * (mixes * c.hc_mult * c.hidden_size + mixes + 3) * _FP32
    norms = _plain(c, 2 * c.hidden_size)
    return _attention(c) + _compressor(c, ratio) + gate + shared + connections + norms


def _attention(c: ModelConfig) -> int:
    channels, groups = c.num_heads * c.head_dim, c.o_groups * c.o_lora_rank
    query = _linear(c, c.q_lora_rank, c.hidden_size) + _linear(c, channels, c.q_lora_rank)
    output = _linear(c, groups, channels // c.o_groups) + _linear(c, c.hidden_size, groups)
    norms = _plain(c, c.q_lora_rank + c.head_dim)
    return query + _linear(c, c.head_dim, c.hidden_size) + output + norms + c.num_heads * _FP32


def _compressor(c: ModelConfig, ratio: int) -> int:
    if ratio == SWA:
        return 0
    if ratio != C4:
        return _compressor_of(c, ratio, c.head_dim, 1)
    indexer = _linear(c, c.index_heads * c.index_dim, c.q_lora_rank) + _plain(c, c.index_heads * c.hidden_size)
    return _compressor_of(c, ratio, c.head_dim, 2) + _compressor_of(c, ratio, c.index_dim, 2) + indexer


def _compressor_of(c: ModelConfig, ratio: int, width: int, halves: int) -> int:
    channels = halves * width
    return ratio * channels * _FP32 + _plain(c, 2 * channels * c.hidden_size + width)


def _head_connection(c: ModelConfig) -> int:
    return (c.hc_mult * c.hc_mult * c.hidden_size + c.hc_mult + 1) * _FP32
