"""A tiny random V4 model with every path active (reference 8.2): config, tensors, checkpoint folder."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.tiny_config import DEEPSEEK
from v4_core.config import ModelConfig
from v4_engine.weights import expected_shapes

TINY: dict[str, Any] = DEEPSEEK | {
    "max_position_embeddings": 16384,
    "num_nextn_predict_layers": 0,
    "torch_dtype": "float32",
}


def tiny_config(**overrides: Any) -> ModelConfig:
    """Return the tiny model's config with overridden fields of config.json."""
    return ModelConfig.from_dict(TINY | overrides)


def tiny_tensors(config: ModelConfig, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Return random weights by DeepSeek's names. Sinks, biases, ape and tid2eid are random too."""
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
    """Write a checkpoint folder with DeepSeek's names and return its path."""
    path.mkdir(parents=True, exist_ok=True)
    data = TINY | overrides
    (path / "config.json").write_text(json.dumps(data))
    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}[data["torch_dtype"]]
    save_file(tiny_tensors(ModelConfig.from_dict(data), seed, dtype), path / "model.safetensors")
    return path
