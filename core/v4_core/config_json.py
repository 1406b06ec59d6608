"""Translates the fields of a `config.json`, in DeepSeek's and transformers' spelling, into arguments of ModelConfig.

Refuses unknown fields, because ignoring a field may silently produce wrong tokens, and fields that contradict each
other, because engines would differ in which one they follow. ModelConfig checks the bounds of values (config.py).
"""

from typing import Any

from v4_core.config_rope import rope
from v4_core.config_values import (
    Json,
    agreed,
    contradiction,
    for_layers,
    group,
    real,
    refuse_unknown,
    token_ids,
    whole,
)
from v4_core.errors import ConfigError

MODEL_TYPE = "deepseek_v4"
ARCHITECTURE = "DeepseekV4ForCausalLM"

_RATIO_OF_LAYER_TYPE = {
    "sliding_attention": 0,
    "compressed_sparse_attention": 4,
    "heavily_compressed_attention": 128,
}

_DTYPES = {"bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}

# Fields with only one supported value: any other value means another forward pass.
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

# Attributes that are one integer field of config.json, with the name of that field.
WHOLE = {
    "vocab_size": "vocab_size", "hidden_size": "hidden_size", "num_heads": "num_attention_heads",
    "head_dim": "head_dim", "q_lora_rank": "q_lora_rank", "o_groups": "o_groups", "o_lora_rank": "o_lora_rank",
    "n_routed_experts": "n_routed_experts", "experts_per_token": "num_experts_per_tok",
    "moe_intermediate_size": "moe_intermediate_size", "window": "sliding_window",
    "index_heads": "index_n_heads", "index_dim": "index_head_dim", "index_topk": "index_topk",
    "hc_mult": "hc_mult", "hc_sinkhorn_iters": "hc_sinkhorn_iters", "max_position": "max_position_embeddings",
    "bos_token_id": "bos_token_id",
}  # fmt: skip

# Attributes that are one number of config.json and have the same name there.
_REAL = ("routed_scaling_factor", "swiglu_limit", "hc_eps", "rms_norm_eps")

# All fields that this module reads.
_READ = {
    *WHOLE.values(), *_REAL, *_FIXED, "model_type", "num_hidden_layers", "qk_rope_head_dim",
    "partial_rotary_factor", "compress_ratios", "compress_rates", "layer_types", "mlp_layer_types",
    "num_hash_layers", "n_shared_experts", "rope_theta", "compress_rope_theta", "rope_scaling",
    "rope_parameters", "num_nextn_predict_layers", "torch_dtype", "dtype", "quantization_config",
    "expert_dtype", "eos_token_id", "architectures",
}  # fmt: skip

# Known fields without influence on inference.
_IGNORED = {
    "transformers_version", "initializer_range", "use_cache", "attention_dropout",
    "_name_or_path", "pad_token_id", "router_aux_loss_coef", "router_jitter_noise", "chunk_size_feed_forward",
    "id2label", "label2id", "is_encoder_decoder", "output_attentions", "output_hidden_states",
    "output_router_logits", "problem_type", "return_dict", "name_or_path", "auto_map", "attn_implementation",
    "_attn_implementation", "dspark_block_size", "dspark_noise_token_id", "dspark_target_layer_ids",
    "dspark_markov_rank",
}  # fmt: skip


def fields(data: Json) -> dict[str, Any]:
    """Returns ModelConfig's arguments, with `yarn` as a dict or None. Raises ConfigError that names the field."""
    _refuse_other_models(data)
    refuse_unknown("config.json field", data, _READ | _IGNORED, _READ)
    for key, only in _FIXED.items():
        if data.get(key, only) != only:
            raise ConfigError(f"config.json has {key}={data[key]!r}; only {only!r} is supported")
    ratios, draft_layers = _ratios(data, whole(data, "num_hidden_layers"))
    return {
        **{name: whole(data, key) for name, key in WHOLE.items()},
        **{name: real(data, name) for name in _REAL},
        **rope(data),
        "ratios": ratios,
        "n_shared_experts": whole(data, "n_shared_experts", 1),
        "num_hash_layers": _hash_layers(data, len(ratios)),
        "eos_token_ids": token_ids(data, "eos_token_id"),
        "draft_layers": draft_layers,
        "dtype": _DTYPES[stated_dtype(data) or "bfloat16"],
        "quantised": bool(data.get("quantization_config")) or data.get("expert_dtype") in ("fp4", "fp8"),
    }


def stated_dtype(data: Json) -> str | None:
    """transformers' name of the unquantised weights' type; None if the config does not say it. Raises ConfigError."""
    name = agreed({"dtype": data.get("dtype"), "torch_dtype": data.get("torch_dtype")})
    if name is None or (isinstance(name, str) and name in _DTYPES):
        return name
    key = "torch_dtype" if data.get("dtype") is None else "dtype"
    raise ConfigError(f"{key} is {name!r}; supported: {', '.join(_DTYPES)}")


def _refuse_other_models(data: Json) -> None:
    kind, architectures = data.get("model_type"), data.get("architectures")
    if kind == "deepseek_v41":
        raise ConfigError(f"model_type is {kind!r}, this engine runs {MODEL_TYPE!r} only: V4.1 is another architecture")
    supported = f"only text models are supported, of model_type {MODEL_TYPE!r} and architecture {ARCHITECTURE!r}"
    if signs := [key for key in data if _of_other_modalities(key)]:
        raise ConfigError(
            f"this is a vision or other multimodal checkpoint (it has {', '.join(signs[:3])}): {supported}"
        )
    if kind != MODEL_TYPE:
        raise ConfigError(f"model_type is {kind!r}, this engine runs {MODEL_TYPE!r} only")
    if architectures and architectures != [ARCHITECTURE]:
        raise ConfigError(f"config.json has architectures={architectures!r}: {supported}")


def _of_other_modalities(key: str) -> bool:
    """Whether a field occurs in V4-Flash-Vision-Exp or in the nested configs of other multimodal models."""
    return key.startswith(("vision_", "image_", "audio_", "video_")) or key == "text_config"


def _ratios(data: Json, layers: int) -> tuple[tuple[int, ...], int]:
    """The ratios of the main layers, and the number of draft layers that follow them."""
    drafts = whole(data, "num_nextn_predict_layers", 0)
    rates = group(data, "compress_rates")
    if any(_RATIO_OF_LAYER_TYPE.get(kind) != rate for kind, rate in rates.items()):
        raise ConfigError(f"compress_rates is {rates!r}; only the ratios 4 and 128 are supported")
    if data.get("compress_ratios") is None:
        return _by_type(data, layers), drafts
    listed = for_layers(data, "compress_ratios", layers)
    if data.get("layer_types") is not None:
        for i, (ratio, typed) in enumerate(zip(listed, _by_type(data, layers), strict=False)):
            if ratio != typed:
                raise contradiction(f"compress_ratios[{i}]", ratio, f"layer_types[{i}]", data["layer_types"][i])
    return tuple(listed[:layers]), max(drafts, len(listed) - layers)


def _by_type(data: Json, layers: int) -> tuple[int, ...]:
    """The ratios of the main layers by transformers' `layer_types`."""
    types = for_layers(data, "layer_types", layers)[:layers]
    for kind in types:
        if not isinstance(kind, str) or kind not in _RATIO_OF_LAYER_TYPE:
            raise ConfigError(f"layer_types holds {kind!r}; known: {', '.join(_RATIO_OF_LAYER_TYPE)}")
    return tuple(_RATIO_OF_LAYER_TYPE[kind] for kind in types)


def _hash_layers(data: Json, layers: int) -> int:
    """The number of leading layers that choose their experts by token id."""
    stated: dict[str, int] = {}
    if data.get("num_hash_layers") is not None:
        stated["num_hash_layers"] = whole(data, "num_hash_layers")
    if data.get("mlp_layer_types") is not None or not stated:
        kinds = for_layers(data, "mlp_layer_types", layers)[:layers]
        count = kinds.count("hash_moe")
        if kinds != ["hash_moe"] * count + ["moe"] * (layers - count):
            raise ConfigError("mlp_layer_types must be hash_moe layers followed by moe layers")
        stated["the number of hash_moe in mlp_layer_types"] = count
    return int(agreed(stated))
