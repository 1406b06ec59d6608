"""The shape of a DeepSeek V4 model, read from a checkpoint's `config.json`.

Knows both spellings of every field that drifted between DeepSeek's files and transformers', and refuses what it
does not know, since a field that is skipped is a silent wrong token. Knows nothing of weights or devices.
"""

import json
import math
from collections.abc import Collection, Mapping
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

# Attributes that are one whole number of config.json, and its field.
_WHOLE = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_heads": "num_attention_heads",
    "head_dim": "head_dim", "q_lora_rank": "q_lora_rank", "o_groups": "o_groups", "o_lora_rank": "o_lora_rank",
    "n_routed_experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok",
    "moe_intermediate_size": "moe_intermediate_size", "window": "sliding_window",
    "index_heads": "index_n_heads", "index_dim": "index_head_dim", "index_topk": "index_topk",
    "hc_mult": "hc_mult", "hc_sinkhorn_iters": "hc_sinkhorn_iters", "max_position": "max_position_embeddings",
    "bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id",
}  # fmt: skip

# Attributes that are one number of config.json and are called as there.
_REAL = ("routed_scaling_factor", "swiglu_limit", "hc_eps", "rms_norm_eps")

# Every field that is read here.
_READ = {
    *_WHOLE.values(), *_REAL, *_FIXED, "model_type", "num_hidden_layers", "qk_rope_head_dim",
    "partial_rotary_factor", "compress_ratios", "compress_rates", "layer_types", "mlp_layer_types",
    "num_hash_layers", "n_shared_experts", "rope_theta", "compress_rope_theta", "rope_scaling",
    "rope_parameters", "num_nextn_predict_layers", "torch_dtype", "dtype", "quantization_config",
    "expert_dtype",
}  # fmt: skip

# Every field of rope_scaling and of the two groups of rope_parameters that is read or repeats another.
_ROPE_READ = {
    "type", "rope_type", "rope_theta", "factor", "beta_fast", "beta_slow", "original_max_position_embeddings",
    "attention_factor", "partial_rotary_factor",
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
    """YaRN of the compressed layers' rotary table; its amplitude factor is 1.0."""

    factor: float
    beta_fast: float
    beta_slow: float
    original_max_position: int


@dataclass(frozen=True)
class ModelConfig:
    """Every field that shapes the forward ; the letters are the paper's symbols."""

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
            raise ConfigError(f"cannot read {file}: {error}; give the folder of a checkpoint") from error
        if not isinstance(data, dict):
            raise ConfigError(f"{file} holds no JSON object")
        return cls.from_dict(data)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ModelConfig":
        """Build from a parsed `config.json`. Raises ConfigError naming a field that cannot be used."""
        kind = data.get("model_type")
        if kind != MODEL_TYPE:
            extra = ": V4.1 is another architecture" if kind == "deepseek_v41" else ""
            raise ConfigError(f"model_type is {kind!r}, this engine runs {MODEL_TYPE!r} only{extra}")
        _refuse_unknown("config.json field", data, _READ | _IGNORED, _READ)
        for key, value in _FIXED.items():
            if data.get(key, value) != value:
                raise ConfigError(f"config.json has {key}={data[key]!r}; only {value!r} is supported")
        return cls(**_fields(data))


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    ratios, draft_layers = _ratios(data, _whole(data, "num_hidden_layers"))
    if data.get("qk_rope_head_dim") is None:
        rope_dim = round(_whole(data, "head_dim") * _real(data, "partial_rotary_factor"))
    else:
        rope_dim = _whole(data, "qk_rope_head_dim")
    rope_theta, compress_rope_theta, yarn = _rope(data)
    return {
        **{name: _whole(data, key) for name, key in _WHOLE.items()},
        **{name: _real(data, name) for name in _REAL},
        "ratios": ratios,
        "rope_dim": rope_dim,
        "n_shared_experts": _whole(data, "n_shared_experts", 1),
        "num_hash_layers": _hash_layers(data, len(ratios)),
        "rope_theta": rope_theta,
        "compress_rope_theta": compress_rope_theta,
        "yarn": yarn,
        "draft_layers": draft_layers,
        "dtype": _dtype(data),
        "quantised": bool(data.get("quantization_config")) or data.get("expert_dtype") in ("fp4", "fp8"),
    }


def _ratios(data: Mapping[str, Any], layers: int) -> tuple[tuple[int, ...], int]:
    """Ratios of the main layers, and the number of draft layers listed or named behind them."""
    drafts = _whole(data, "num_nextn_predict_layers", 0)
    if data.get("compress_ratios") is not None:
        listed = _list(data, "compress_ratios", layers)
        return tuple(listed[:layers]), max(drafts, len(listed) - layers)
    rates = _group(data, "compress_rates")
    if any(_RATIO_OF_LAYER_TYPE.get(kind) != rate for kind, rate in rates.items()):
        raise ConfigError(f"compress_rates is {rates!r}; only the ratios 4 and 128 are supported")
    types = _list(data, "layer_types", layers)[:layers]
    for kind in types:
        if kind not in _RATIO_OF_LAYER_TYPE:
            raise ConfigError(f"layer_types holds {kind!r}; known: {', '.join(_RATIO_OF_LAYER_TYPE)}")
    return tuple(_RATIO_OF_LAYER_TYPE[kind] for kind in types), drafts


def _hash_layers(data: Mapping[str, Any], layers: int) -> int:
    if data.get("num_hash_layers") is not None:
        return _whole(data, "num_hash_layers")
    kinds = _list(data, "mlp_layer_types", layers)[:layers]
    count = kinds.count("hash_moe")
    if kinds != ["hash_moe"] * count + ["moe"] * (layers - count):
        raise ConfigError("mlp_layer_types must be hash_moe layers followed by moe layers")
    return count


def _rope(data: Mapping[str, Any]) -> tuple[float, float, Yarn | None]:
    """theta of SWA layers, theta of compressed layers, YaRN of the latter."""
    nested = _group(data, "rope_parameters")
    _refuse_unknown("rope_parameters field", nested, {"main", "compress"})
    main, compress = _group(nested, "main"), _group(nested, "compress")
    scaling = _group(data, "rope_scaling") or compress
    for group in (main, compress, scaling):
        _refuse_unknown("rope field", group, _ROPE_READ)
    theta = _real(main if "rope_theta" in main else data, "rope_theta")
    compress_theta = _real(compress, "rope_theta") if "rope_theta" in compress else _real(data, "compress_rope_theta")
    kind = scaling.get("type") or scaling.get("rope_type")
    if not scaling or kind == "default":
        return theta, compress_theta, None
    if kind != "yarn":
        raise ConfigError(f"rope_scaling type is {kind!r}; only 'yarn' is supported")
    if _real(scaling, "attention_factor", 1.0) != 1.0:
        raise ConfigError("rope_scaling has an attention_factor other than 1.0, which V4 does not use")
    return theta, compress_theta, _yarn(scaling)


def _yarn(scaling: Mapping[str, Any]) -> Yarn:
    return Yarn(
        factor=_real(scaling, "factor"),
        beta_fast=_real(scaling, "beta_fast"),
        beta_slow=_real(scaling, "beta_slow"),
        original_max_position=_whole(scaling, "original_max_position_embeddings"),
    )


def _dtype(data: Mapping[str, Any]) -> str:
    names = {"bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
    name = data.get("torch_dtype") or data.get("dtype") or "bfloat16"
    if name not in names:
        raise ConfigError(f"torch_dtype is {name!r}; supported: {', '.join(names)}")
    return names[name]


def _refuse_unknown(what: str, data: Mapping[str, Any], known: Collection[str], named: Collection[str] = ()) -> None:
    """Raise ConfigError at a key that is not `known`; `named` are those worth naming, all if none are given."""
    for key in data:
        if key not in known:
            raise ConfigError(unknown_key_message(what, key, named or known))


def _value(data: Mapping[str, Any], key: str, default: Any = None) -> Any:
    value = data.get(key)
    if value is None and default is None:
        raise ConfigError(f"config.json lacks the field {key!r}")
    return default if value is None else value


def _whole(data: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = _value(data, key, default)
    if not isinstance(value, int) or isinstance(value, bool):
        raise ConfigError(f"config.json has {key}={value!r}; it must be a whole number")
    return value


def _real(data: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = _value(data, key, default)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ConfigError(f"config.json has {key}={value!r}; it must be a number")
    return float(value)


def _list(data: Mapping[str, Any], key: str, layers: int) -> list[Any]:
    value = _value(data, key)
    if not isinstance(value, list) or len(value) < layers:
        raise ConfigError(f"{key} must list one item for each of the {layers} layers, not {value!r}")
    return value


def _group(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = _value(data, key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"config.json has {key}={value!r}; it must be an object")
    return value


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
            raise ConfigError(f"config.json: {_WHOLE[name]} must be at least 1, not {getattr(c, name)}")
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
        (0 <= c.eos_token_id < c.vocab_size, "eos_token_id must be within the vocabulary"),
    ]
    for holds, message in rules:
        if not holds:
            raise ConfigError(f"config.json: {message}")
