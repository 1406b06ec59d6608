"""transformers' own DeepSeek V4 with given weights: the oracle (reference 8), eager, on CPU."""

import warnings
from typing import Any

import torch
from torch import Tensor

from tests.tiny import TINY
from v4_engine.naming import translate


def oracle(overrides: dict[str, Any], tensors: dict[str, Tensor]) -> Any:
    """A DeepseekV4ForCausalLM of the tiny config with overrides, holding DeepSeek-named tensors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own imports warn
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
