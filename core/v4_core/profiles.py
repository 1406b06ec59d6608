"""Built-in model configs: the known properties of a model, without its checkpoint."""

from dataclasses import replace
from pathlib import Path

from v4_core.config import ModelConfig, Yarn
from v4_core.errors import ConfigError

_FLASH = ModelConfig(
    vocab_size=129_280, hidden_size=4096, ratios=(0, 0, *(4, 128) * 20, 4), num_heads=64, head_dim=512,
    rope_dim=64, q_lora_rank=1024, o_groups=8, o_lora_rank=1024, n_routed_experts=256, experts_per_token=6,
    n_shared_experts=1, moe_intermediate_size=2048, num_hash_layers=3, routed_scaling_factor=1.5,
    swiglu_limit=10.0, window=128, index_heads=64, index_dim=128, index_topk=512, hc_mult=4,
    hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6, rope_theta=10_000.0, compress_rope_theta=160_000.0,
    yarn=Yarn(16.0, 32.0, 1.0, 65_536), max_position=1_048_576, bos_token_id=0, eos_token_ids=(1,),
    draft_layers=1, dtype="bf16", quantised=True,
)  # fmt: skip

_PRO = replace(
    _FLASH, hidden_size=7168, ratios=(128, 128, *(4, 128) * 29, 4), num_heads=128, q_lora_rank=1536,
    o_groups=16, n_routed_experts=384, moe_intermediate_size=3072, routed_scaling_factor=2.5, index_topk=1024,
)  # fmt: skip

# The model that ships with v4serve.
_DEMO = ModelConfig(
    vocab_size=2048, hidden_size=192, ratios=(0, 4, 128, 4, 128, 4), num_heads=8, head_dim=96, rope_dim=32,
    q_lora_rank=96, o_groups=2, o_lora_rank=64, n_routed_experts=8, experts_per_token=2, n_shared_experts=1,
    moe_intermediate_size=64, num_hash_layers=2, routed_scaling_factor=1.5, swiglu_limit=10.0, window=128,
    index_heads=16, index_dim=64, index_topk=64, hc_mult=4, hc_sinkhorn_iters=20, hc_eps=1e-6, rms_norm_eps=1e-6,
    rope_theta=10_000.0, compress_rope_theta=160_000.0, yarn=Yarn(16.0, 32.0, 1.0, 512), max_position=8192,
    bos_token_id=0, eos_token_ids=(1,), draft_layers=0, dtype="fp32", quantised=False,
)  # fmt: skip

PROFILES = {"demo": _DEMO, "flash": _FLASH, "pro": _PRO}


def model_config(model: str) -> ModelConfig:
    """Returns the config of a profile or of a checkpoint folder. Raises ConfigError if `model` is neither."""
    if model in PROFILES:
        return PROFILES[model]
    if not Path(model).exists():
        raise ConfigError(f"{model!r} is neither a profile ({', '.join(PROFILES)}) nor an existing path")
    return ModelConfig.from_path(Path(model))
