"""The oracle (reference 8): transformers' own DeepSeek V4 with given weights, in eager mode on a CPU."""

import warnings
from typing import Any

import torch
from torch import Tensor

from tests.tiny import TINY
from v4_engine.naming import translate


def oracle(overrides: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """Return a DeepseekV4ForCausalLM of the tiny config with overrides. `tensors` have DeepSeek's names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # importing transformers warns
        from transformers import DeepseekV4Config, DeepseekV4ForCausalLM
    config = DeepseekV4Config(**{k: v for k, v in (TINY | overrides).items() if k != "architectures"})
    config._attn_implementation = "eager"
    model: Any = DeepseekV4ForCausalLM(config)
    model.eval()
    with torch.no_grad():
        for name, target in model.state_dict().items():
            for ours, view in translate(name, target):
                view.copy_(tensors[ours])
    return model
