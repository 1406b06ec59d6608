"""The shape of a DeepSeek V4 model, and the bounds of its fields. Knows no weight names and no devices.

config_json.py knows the meaning of the fields of a `config.json`. If that file does not name the weights' type, or
names a quantisation, the weights next to it decide.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from v4_core.config_json import WHOLE, fields, stated_dtype
from v4_core.errors import ConfigError
from v4_core.shards import is_quantised, most_bytes, stored_bytes

SWA, C4, C128 = 0, 4, 128


@dataclass(frozen=True)
class Yarn:
    """YaRN parameters of the compressed layers' rotary table; the amplitude factor is 1.0."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int


@dataclass(frozen=True)
class ModelConfig:
    """Every field that shapes the forward pass; the letters are the paper's symbols."""

    vocab_size: int
    hidden_size: int  # D
    ratios: tuple[int, ...]  # one of 0, 4, 128 per main layer
    num_heads: int  # H
    head_dim: int  # d
    rope_dim: int  # r, the last r channels
    q_lora_rank: int  # Q
    o_groups: int  # G
    o_lora_rank: int  # R
    n_routed_experts: int  # E
    experts_per_token: int  # K
    n_shared_experts: int
    moe_intermediate_size: int  # I
    num_hash_layers: int
    routed_scaling_factor: float
    swiglu_limit: float
    window: int  # W, including the query's own token
    index_heads: int  # Hi
    index_dim: int  # di
    index_topk: int  # T
    hc_mult: int  # M
    hc_sinkhorn_iters: int
    hc_eps: float
    rms_norm_eps: float
    rope_theta: float
    compress_rope_theta: float
    yarn: Yarn | None
    max_position: int  # tokens
    bos_token_id: int
    eos_token_ids: tuple[int, ...]  # ascending; any of them ends an output
    draft_layers: int  # MTP layers after the main stack
    dtype: str  # bf16, fp32 or fp64: as config.json says, otherwise the type of most unquantised bytes of the weights
    quantised: bool  # fp8 / fp4 weights

    def __post_init__(self) -> None:
        _check(self)

    @property
    def num_layers(self) -> int:
        """L, main layers."""
        return len(self.ratios)

    def layers_of(self, ratio: int) -> tuple[int, ...]:
        """The indices of the layers with this compression ratio (0 = sliding window only)."""
        return tuple(i for i, r in enumerate(self.ratios) if r == ratio)

    @classmethod
    def from_path(cls, path: Path) -> "ModelConfig":
        """Reads a checkpoint folder, or a `config.json` without weights. Raises ConfigError."""
        data = _parsed(path / "config.json" if path.is_dir() else path)
        config = cls.from_dict(data)
        unstated = stated_dtype(data) is None
        stored = stored_bytes(path) if path.is_dir() and (unstated or config.quantised) else {}
        if not stored:
            return config
        dtype = (most_bytes(stored) if unstated else None) or config.dtype
        # A conversion to bf16 may leave `quantization_config` and `expert_dtype` in config.json.
        return replace(config, dtype=dtype, quantised=any(map(is_quantised, stored)))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """Builds the config from a parsed `config.json`; bf16 if it names no type. Raises ConfigError."""
        given = fields(data)
        yarn = given.pop("yarn")
        return cls(**given, yarn=Yarn(**yarn) if yarn else None)


def _parsed(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file} does not exist: give the folder of a DeepSeek V4 checkpoint") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"cannot read {file}: {error}; give the folder of a checkpoint") from error
    if not isinstance(data, dict):
        raise ConfigError(f"{file} does not hold a JSON object")
    return data


def _positive(c: ModelConfig) -> list[tuple[str, float]]:
    values = [(name, getattr(c, name)) for name in ("hc_eps", "rms_norm_eps", "swiglu_limit", "routed_scaling_factor")]
    if c.yarn is not None:
        values += [(f"rope_scaling.{name}", value) for name, value in vars(c.yarn).items()]
    return values


def _check(c: ModelConfig) -> None:
    sizes = ("vocab_size", "hidden_size", "num_heads", "head_dim", "q_lora_rank", "o_groups", "o_lora_rank",
             "moe_intermediate_size", "index_heads", "index_dim", "index_topk", "hc_mult",
             "hc_sinkhorn_iters", "max_position")  # fmt: skip
    for name in sizes:
        if getattr(c, name) < 1:
            raise ConfigError(f"config.json: {WHOLE[name]} must be at least 1, not {getattr(c, name)}")
    rules = [
        (
            c.ratios and all(r in (SWA, C4, C128) for r in c.ratios),
            "compress_ratios may hold 0, 4 and 128 only",
        ),
        (0 < c.rope_dim <= c.head_dim, "qk_rope_head_dim must be within head_dim"),
        (c.rope_dim % 2 == 0, "qk_rope_head_dim must be even"),
        (c.rope_dim <= c.index_dim, "qk_rope_head_dim must be within index_head_dim"),
        (c.num_heads % c.o_groups == 0, "o_groups must divide num_attention_heads"),
        (
            0 < c.experts_per_token <= c.n_routed_experts,
            "num_experts_per_tok must be within n_routed_experts",
        ),
        (0 <= c.num_hash_layers <= len(c.ratios), "num_hash_layers must be within num_hidden_layers"),
        (5 <= c.window <= 256, "sliding_window must be within 5..256"),
        *((0 < value < math.inf, f"{name} must be greater than 0") for name, value in _positive(c)),
        (c.rope_theta > 1 and c.compress_rope_theta > 1, "rope_theta and compress_rope_theta must be greater than 1"),
        (c.draft_layers >= 0, "num_nextn_predict_layers must not be negative"),
        (c.n_shared_experts == 1, "n_shared_experts must be 1"),
        (all(0 <= one < c.vocab_size for one in c.eos_token_ids), "eos_token_id must be within the vocabulary"),
    ]
    for holds, message in rules:
        if not holds:
            raise ConfigError(f"config.json: {message}")
