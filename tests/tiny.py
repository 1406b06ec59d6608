"""A tiny random V4 model with every path active (reference 8.2): config, tensors, checkpoint folder."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from v4_core.config import ModelConfig
from v4_engine.weights import expected_shapes

TINY: dict[str, Any] = {
    "architectures": ["DeepseekV4ForCausalLM"],
    "model_type": "deepseek_v4",
    "vocab_size": 512,
    "hidden_size": 64,
    "moe_intermediate_size": 32,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "q_lora_rank": 24,
    "num_experts_per_tok": 2,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "scoring_func": "sqrtsoftplus",
    "routed_scaling_factor": 1.5,
    "swiglu_limit": 10.0,
    "max_position_embeddings": 16384,
    "rope_theta": 10000.0,
    "compress_rope_theta": 160000.0,
    "qk_rope_head_dim": 8,
    "compress_ratios": [0, 4, 128, 4, 128],
    "num_hash_layers": 2,
    "rope_scaling": {
        "type": "yarn",
        "factor": 16,
        "beta_fast": 32,
        "beta_slow": 1,
        "original_max_position_embeddings": 256,
    },
    "sliding_window": 16,
    "o_groups": 2,
    "o_lora_rank": 16,
    "index_n_heads": 16,
    "index_head_dim": 16,
    "index_topk": 8,
    "hc_mult": 4,
    "hc_sinkhorn_iters": 20,
    "hc_eps": 1e-6,
    "rms_norm_eps": 1e-6,
    "num_nextn_predict_layers": 0,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def tiny_config(**overrides: Any) -> ModelConfig:
    """The tiny model's config with fields of config.json overridden."""
    return ModelConfig.from_dict(TINY | overrides)


def tiny_tensors(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random weights under DeepSeek's names; sinks, biases, ape and tid2eid are random too."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for name, shape in expected_shapes(config).items():
        noise = torch.randn(shape, generator=generator, dtype=torch.float64)
        if name.endswith("tid2eid"):
            order = torch.rand(shape[0], config.n_routed_experts, generator=generator).argsort(dim=1)
            tensors[name] = order[:, : shape[1]].contiguous()
            continue
        if "norm.weight" in name:
            noise = 1 + 0.1 * noise
        elif len(shape) == 2 and not name.endswith(".ape"):
            noise = noise / shape[1] ** 0.5
        elif name.endswith("gate.bias"):
            noise = 0.1 * noise
        tensors[name] = noise.to(dtype)
    return tensors


def tiny_checkpoint(path: Path, seed: int = 0, **overrides: Any) -> Path:
    """Write a checkpoint folder in DeepSeek's spelling and return it."""
    path.mkdir(parents=True, exist_ok=True)
    data = TINY | overrides
    (path / "config.json").write_text(json.dumps(data))
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}[data["torch_dtype"]]
    save_file(tiny_tensors(ModelConfig.from_dict(data), seed, dtype), path / "model.safetensors")
    return path
