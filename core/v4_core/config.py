"""The shape of a DeepSeek V4 model, read from a checkpoint's `config.json`.

Knows both spellings of every field that drifted between DeepSeek's files and transformers' (reference 1.4) and refuses
what it does not know, since a field that is skipped is a silent wrong token. Knows nothing of weights or devices.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from v4_core.errors import ConfigError, unknown_key_message

MODEL_TYPE = "deepseek_v4"
SWA, C4, C128 = 0, 4, 128

_RATIO_OF_LAYER_TYPE = {
    "sliding_attention": SWA,
    "compressed_sparse_attention": C4,
    "heavily_compressed_attention": C128,
}

# Fields with one admissible value: another value means another forward.
_FIXED: dict[str, Any] = {
    "hidden_act": "silu",
    "scoring_func": "sqrtsoftplus",
    "topk_method": "noaux_tc",
    "norm_topk_prob": True,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "mlp_bias": False,
    "num_key_value_heads": 1,
}

_READ = {
    "model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim",
    "qk_rope_head_dim", "partial_rotary_factor", "q_lora_rank", "o_lora_rank", "o_groups", "compress_ratios",
    "compress_rates", "layer_types", "mlp_layer_types", "num_hash_layers", "n_routed_experts",
    "num_experts_per_tok", "n_shared_experts", "moe_intermediate_size", "routed_scaling_factor", "swiglu_limit",
    "sliding_window", "index_n_heads", "index_head_dim", "index_topk", "hc_mult", "hc_sinkhorn_iters", "hc_eps",
    "rms_norm_eps", "rope_theta", "compress_rope_theta", "rope_scaling", "rope_parameters",
    "max_position_embeddings", "bos_token_id", "eos_token_id", "num_nextn_predict_layers", "torch_dtype", "dtype",
    "quantization_config", "expert_dtype",
}  # fmt: skip

# Known, and without influence on inference.
_IGNORED = {
    "architectures", "transformers_version", "initializer_range", "use_cache", "attention_dropout",
    "_name_or_path", "pad_token_id", "router_aux_loss_coef", "router_jitter_noise", "chunk_size_feed_forward",
    "id2label", "label2id", "is_encoder_decoder", "output_attentions", "output_hidden_states",
    "output_router_logits", "problem_type", "return_dict", "name_or_path", "auto_map", "attn_implementation",
    "_attn_implementation", "dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids",
    "dspark_markov_rank",
}  # fmt: skip


@dataclass(frozen=True)
class Yarn:
    """YaRN of the compressed layers' rotary table (reference 2.4); its amplitude factor is 1.0."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int


@dataclass(frozen=True)
class ModelConfig:
    """Every field that shapes the forward (reference section 0 has the symbols)."""

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
    window: int  # W, the query's own token included
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
    eos_token_id: int
    draft_layers: int  # MTP layers behind the main stack
    dtype: str  # bf16, fp32 or fp64: of the checkpoint's unquantised tensors
    quantised: bool  # fp8 / fp4 weights

    def __post_init__(self) -> None:
        _check(self)

    @property
    def num_layers(self) -> int:
        """L, main layers."""
        return len(self.ratios)

    def layers_of(self, ratio: int) -> tuple[int, ...]:
        """Indices of the layers with this compression ratio (0 = SWA only)."""
        return tuple(i for i, r in enumerate(self.ratios) if r == ratio)

    @classmethod
    def from_path(cls, path: Path) -> "ModelConfig":
        """Read `config.json` in a checkpoint folder, or that file itself. Raises ConfigError."""
        file = path / "config.json" if path.is_dir() else path
        try:
            data = json.loads(file.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise ConfigError(f"{file} does not exist: give the folder of a DeepSeek V4 checkpoint") from None
        except (OSError, ValueError) as error:
            raise ConfigError(f"cannot read {file}: {error}") from error
        if not isinstance(data, dict):
            raise ConfigError(f"{file} holds no JSON object")
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """Build from a parsed `config.json`. Raises ConfigError naming every unusable field."""
        kind = data.get("model_type")
        if kind != MODEL_TYPE:
            extra = ": V4.1 is another architecture" if kind == "deepseek_v41" else ""
            raise ConfigError(f"model_type is {kind!r}, this engine runs {MODEL_TYPE!r} only{extra}")
        for key in data:
            if key not in _READ and key not in _IGNORED and key not in _FIXED:
                raise ConfigError(unknown_key_message("config.json field", key, _READ))
        for key, value in _FIXED.items():
            if data.get(key, value) != value:
                raise ConfigError(f"config.json has {key}={data[key]!r}; only {value!r} is supported")
        try:
            return cls(**_fields(data))
        except KeyError as error:
            raise ConfigError(f"config.json lacks the field {error.args[0]!r}") from None
        except (TypeError, ValueError) as error:
            raise ConfigError(f"config.json has a field of the wrong kind: {error}") from error


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    layers = int(data["num_hidden_layers"])
    ratios, drafts = _ratios(data, layers)
    head_dim = int(data["head_dim"])
    rope_dim = data.get("qk_rope_head_dim")
    if rope_dim is None:
        rope_dim = round(head_dim * float(data["partial_rotary_factor"]))
    rope_theta, compress_theta, yarn = _rope(data)
    return {
        "vocab_size": int(data["vocab_size"]),
        "hidden_size": int(data["hidden_size"]),
        "ratios": ratios,
        "num_heads": int(data["num_attention_heads"]),
        "head_dim": head_dim,
        "rope_dim": int(rope_dim),
        "q_lora_rank": int(data["q_lora_rank"]),
        "o_groups": int(data["o_groups"]),
        "o_lora_rank": int(data["o_lora_rank"]),
        "n_routed_experts": int(data["n_routed_experts"]),
        "experts_per_token": int(data["num_experts_per_tok"]),
        "n_shared_experts": int(data.get("n_shared_experts", 1)),
        "moe_intermediate_size": int(data["moe_intermediate_size"]),
        "num_hash_layers": _hash_layers(data, layers),
        "routed_scaling_factor": float(data["routed_scaling_factor"]),
        "swiglu_limit": float(data["swiglu_limit"]),
        "window": int(data["sliding_window"]),
        "index_heads": int(data["index_n_heads"]),
        "index_dim": int(data["index_head_dim"]),
        "index_topk": int(data["index_topk"]),
        "hc_mult": int(data["hc_mult"]),
        "hc_sinkhorn_iters": int(data["hc_sinkhorn_iters"]),
        "hc_eps": float(data["hc_eps"]),
        "rms_norm_eps": float(data["rms_norm_eps"]),
        "rope_theta": rope_theta,
        "compress_rope_theta": compress_theta,
        "yarn": yarn,
        "max_position": int(data["max_position_embeddings"]),
        "bos_token_id": int(data["bos_token_id"]),
        "eos_token_id": int(data["eos_token_id"]),
        "draft_layers": drafts,
        "dtype": _dtype(data),
        "quantised": bool(data.get("quantization_config")) or data.get("expert_dtype") in ("fp4", "fp8"),
    }


def _ratios(data: Mapping[str, Any], layers: int) -> tuple[tuple[int, ...], int]:
    """Ratios of the main layers, and the number of draft layers listed or named behind them."""
    drafts = int(data.get("num_nextn_predict_layers", 0))
    if (listed := data.get("compress_ratios")) is not None:
        if len(listed) < layers:
            raise ConfigError(f"compress_ratios lists {len(listed)} layers, num_hidden_layers is {layers}")
        return tuple(int(r) for r in listed[:layers]), max(drafts, len(listed) - layers)
    rates = {_RATIO_OF_LAYER_TYPE[k]: int(v) for k, v in (data.get("compress_rates") or {}).items()}
    if any(ratio != rate for ratio, rate in rates.items()):
        raise ConfigError(f"compress_rates is {data['compress_rates']!r}; only the ratios 4 and 128 are supported")
    types = data["layer_types"]
    unknown = sorted(set(types) - set(_RATIO_OF_LAYER_TYPE))
    if unknown:
        raise ConfigError(f"layer_types holds {unknown[0]!r}; known: {', '.join(_RATIO_OF_LAYER_TYPE)}")
    if len(types) < layers:
        raise ConfigError(f"layer_types lists {len(types)} layers, num_hidden_layers is {layers}")
    return tuple(_RATIO_OF_LAYER_TYPE[t] for t in types[:layers]), drafts


def _hash_layers(data: Mapping[str, Any], layers: int) -> int:
    if (count := data.get("num_hash_layers")) is not None:
        return int(count)
    kinds = list(data["mlp_layer_types"])[:layers]
    count = kinds.count("hash_moe")
    if kinds != ["hash_moe"] * count + ["moe"] * (layers - count):
        raise ConfigError("mlp_layer_types must be hash_moe layers followed by moe layers")
    return count


def _rope(data: Mapping[str, Any]) -> tuple[float, float, Yarn | None]:
    """theta of SWA layers, theta of compressed layers, YaRN of the latter."""
    nested = data.get("rope_parameters") or {}
    main, compress = nested.get("main", {}), nested.get("compress", {})
    scaling = data.get("rope_scaling") or compress
    theta = float(main.get("rope_theta") or data["rope_theta"])
    compress_theta = float(compress.get("rope_theta") or data["compress_rope_theta"])
    kind = scaling.get("type") or scaling.get("rope_type")
    if not scaling or kind == "default":
        return theta, compress_theta, None
    if kind != "yarn":
        raise ConfigError(f"rope_scaling type is {kind!r}; only 'yarn' is supported")
    if float(scaling.get("attention_factor", 1.0)) != 1.0:
        raise ConfigError("rope_scaling has an attention_factor other than 1.0, which DeepSeek V4 does not use")
    return theta, compress_theta, Yarn(
        factor=float(scaling["factor"]),
        beta_fast=float(scaling["beta_fast"]),
        beta_slow=float(scaling["beta_slow"]),
        original_max_position=int(scaling["original_max_position_embeddings"]),
    )


def _dtype(data: Mapping[str, Any]) -> str:
    names = {"bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
    name = data.get("torch_dtype") or data.get("dtype") or "bfloat16"
    if name not in names:
        raise ConfigError(f"torch_dtype is {name!r}; supported: {', '.join(names)}")
    return names[name]


def _check(c: ModelConfig) -> None:
    rules = [
        (set(c.ratios) <= {SWA, C4, C128} and c.ratios, "compress_ratios may hold 0, 4 and 128 only"),
        (0 < c.rope_dim <= c.head_dim and c.rope_dim % 2 == 0, "qk_rope_head_dim must be even and within head_dim"),
        (c.rope_dim <= c.index_dim, "qk_rope_head_dim must be within index_head_dim"),
        (c.num_heads % c.o_groups == 0, "o_groups must divide num_attention_heads"),
        (0 < c.experts_per_token <= c.n_routed_experts, "num_experts_per_tok must be within n_routed_experts"),
        (0 <= c.num_hash_layers <= len(c.ratios), "num_hash_layers must be within num_hidden_layers"),
        (0 < c.window <= 256, "sliding_window must be within 1..256"),
        (c.n_shared_experts == 1, "n_shared_experts must be 1"),
        (c.hc_sinkhorn_iters >= 1, "hc_sinkhorn_iters must be at least 1"),
        (0 <= c.eos_token_id < c.vocab_size, "eos_token_id must be within the vocabulary"),
        (c.index_topk > 0 and c.index_heads > 0, "index_topk and index_n_heads must be positive"),
    ]
    for holds, message in rules:
        if not holds:
            raise ConfigError(f"config.json: {message}")
