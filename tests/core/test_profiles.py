import json
from pathlib import Path

import pytest

from tests.tiny_config import CONFIG, DEEPSEEK
from v4_core.config import C4, C128, SWA, ModelConfig
from v4_core.errors import ConfigError
from v4_core.profiles import PROFILES, model_config
from v4_models import DEMO_MODEL


@pytest.mark.parametrize(
    ("model", "layers"), [("flash", {SWA: 2, C4: 21, C128: 20}), ("pro", {SWA: 0, C4: 30, C128: 31})]
)
def test_the_published_layers(model: str, layers: dict[int, int]) -> None:
    config = model_config(model)
    assert {ratio: len(config.layers_of(ratio)) for ratio in layers} == layers
    assert config.num_layers == sum(layers.values())
    assert config.layers_of(C4) == tuple(range(2, config.num_layers, 2))


def test_flash_and_pro_differ_as_published() -> None:
    flash, pro = model_config("flash"), model_config("pro")
    assert (flash.hidden_size, flash.num_heads, flash.q_lora_rank, flash.o_groups) == (4096, 64, 1024, 8)
    assert (pro.hidden_size, pro.num_heads, pro.q_lora_rank, pro.o_groups) == (7168, 128, 1536, 16)
    assert (flash.n_routed_experts, flash.moe_intermediate_size, flash.index_topk) == (256, 2048, 512)
    assert (pro.n_routed_experts, pro.moe_intermediate_size, pro.index_topk) == (384, 3072, 1024)
    assert (flash.routed_scaling_factor, pro.routed_scaling_factor) == (1.5, 2.5)


def test_the_demo_profile_is_the_model_that_ships() -> None:
    assert PROFILES["demo"] == ModelConfig.from_path(DEMO_MODEL)


def test_a_path_is_a_model_too(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    assert model_config(str(tmp_path)) == CONFIG


def test_neither_profile_nor_path() -> None:
    with pytest.raises(ConfigError, match=r"'flush' is neither a profile \(demo, flash, pro\) nor an existing path"):
        model_config("flush")
