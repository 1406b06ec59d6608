import json
from pathlib import Path
from typing import Any

import pytest

from tests.tiny_config import CONFIG, DEEPSEEK, TRANSFORMERS
from v4_core.config import C4, C128, SWA, ModelConfig, Yarn
from v4_core.errors import ConfigError

NOT_FINITE = (float("nan"), float("inf"), -float("inf"), 10**400)


def deepseek(**changes: Any) -> dict[str, Any]:
    return {**DEEPSEEK, **changes}


def transformers(**changes: Any) -> dict[str, Any]:
    return {**TRANSFORMERS, **changes}


def without(data: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in keys}


def refused(data: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as info:
        ModelConfig.from_dict(data)
    return str(info.value)


def test_both_spellings_are_the_same_model() -> None:
    assert ModelConfig.from_dict(TRANSFORMERS) == CONFIG


def test_every_field_is_read() -> None:
    c = CONFIG
    assert c.ratios == (SWA, C4, C128, C4, C128)
    assert c.layers_of(C4) == (1, 3)
    assert c.layers_of(C128) == (2, 4)
    assert (c.num_layers, c.hidden_size, c.num_heads, c.head_dim, c.rope_dim) == (5, 64, 4, 32, 8)
    assert (c.q_lora_rank, c.o_groups, c.o_lora_rank) == (24, 2, 16)
    assert (c.n_routed_experts, c.experts_per_token, c.moe_intermediate_size) == (8, 2, 32)
    assert (c.num_hash_layers, c.routed_scaling_factor, c.swiglu_limit) == (2, 1.5, 10.0)
    assert (c.window, c.index_heads, c.index_dim, c.index_topk) == (16, 16, 16, 8)
    assert (c.hc_mult, c.hc_sinkhorn_iters, c.hc_eps, c.rms_norm_eps) == (4, 20, 1e-6, 1e-6)
    assert (c.rope_theta, c.compress_rope_theta, c.yarn) == (1e4, 1.6e5, Yarn(16.0, 32.0, 1.0, 256))
    assert (c.vocab_size, c.max_position, c.bos_token_id, c.eos_token_ids) == (512, 4096, 0, (1,))
    assert (c.draft_layers, c.dtype, c.quantised) == (1, "bf16", False)


def test_the_published_draft_layers_stand_behind_the_main_layers() -> None:
    config = ModelConfig.from_dict(deepseek(compress_ratios=[0, 4, 128, 4, 128, 0, 0, 0]))
    assert config.ratios == CONFIG.ratios
    assert config.draft_layers == 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"torch_dtype": "float32"}, {"dtype": "fp32"}),
        ({"dtype": "float64"}, {"dtype": "fp64"}),
        ({"quantization_config": {"quant_method": "fp8"}}, {"quantised": True}),
        ({"expert_dtype": "fp4"}, {"quantised": True}),
        ({"expert_dtype": "fp8"}, {"quantised": True}),
        ({"eos_token_id": [7, 1, 7]}, {"eos_token_ids": (1, 7)}),
        ({"dtype": "float32", "torch_dtype": "float32"}, {"dtype": "fp32"}),
        ({"architectures": None}, {}),
        ({"rope_scaling": None}, {"yarn": None}),
        ({"rope_scaling": {"type": "default"}}, {"yarn": None}),
        ({"dspark_block_size": 5, "dspark_target_layer_ids": [1]}, {}),
    ],
)
def test_optional_fields(changes: dict[str, Any], expected: dict[str, Any]) -> None:
    config = ModelConfig.from_dict(deepseek(**changes))
    assert {key: getattr(config, key) for key in expected} == expected


def test_rope_dim_from_the_fraction_alone() -> None:
    config = ModelConfig.from_dict(without(TRANSFORMERS, "qk_rope_head_dim"))
    assert config == CONFIG


def test_rope_parameters_alone_are_enough() -> None:
    assert ModelConfig.from_dict(without(TRANSFORMERS, "rope_theta", "compress_rope_theta")) == CONFIG


def test_mixed_spelling() -> None:
    mixed = without(TRANSFORMERS, "layer_types", "compress_rates", "mlp_layer_types")
    mixed |= {"compress_ratios": [0, 4, 128, 4, 128, 0], "num_hash_layers": 2}
    assert ModelConfig.from_dict(mixed) == CONFIG


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (deepseek(model_type="deepseek_v41"), "V4.1 is another architecture"),
        (deepseek(model_type="llama"), "model_type is 'llama', this engine runs 'deepseek_v4' only"),
        (without(DEEPSEEK, "model_type"), "model_type is None"),
        (deepseek(sliding_windw=16), "unknown config.json field 'sliding_windw': did you mean 'sliding_window'?"),
        (deepseek(hiden_act="silu"), "unknown config.json field 'hiden_act': did you mean 'hidden_act'?"),
        (deepseek(hidden_act="gelu"), "hidden_act='gelu'; only 'silu' is supported"),
        (deepseek(scoring_func="sigmoid"), "only 'sqrtsoftplus'"),
        (deepseek(tie_word_embeddings=True), "only False"),
        (without(DEEPSEEK, "head_dim"), "lacks the field 'head_dim'"),
        (without(DEEPSEEK, "compress_ratios"), "lacks the field 'layer_types'"),
        (without(DEEPSEEK, "num_hash_layers"), "lacks the field 'mlp_layer_types'"),
        (without(DEEPSEEK, "qk_rope_head_dim"), "lacks the field 'qk_rope_head_dim' or 'partial_rotary_factor'"),
        (without(DEEPSEEK, "rope_theta"), "lacks the field 'rope_theta'"),
        (deepseek(head_dim="32"), "head_dim='32'; it must be a whole number"),
        (deepseek(head_dim=32.5), "head_dim=32.5; it must be a whole number"),
        (deepseek(hc_mult=True), "hc_mult=True; it must be a whole number"),
        (deepseek(swiglu_limit="10"), "swiglu_limit='10'; it must be a number"),
        *((deepseek(swiglu_limit=wrong), "swiglu_limit that is not finite") for wrong in NOT_FINITE),
        *((deepseek(rope_theta=wrong), "rope_theta that is not finite") for wrong in NOT_FINITE),
        *((deepseek(partial_rotary_factor=wrong), "partial_rotary_factor that is not finite") for wrong in NOT_FINITE),
        *((deepseek(partial_rotary_factor=wrong), "it must be in (0, 1]") for wrong in (0, -0.5, 1.5, 1e308)),
        (deepseek(eos_token_id=[1, "2"]), "eos_token_id=[1, '2']; it must be a whole number or a list of them"),
        (deepseek(eos_token_id=[]), "eos_token_id=[]; it must be a whole number or a list of them"),
        (deepseek(eos_token_id=True), "eos_token_id=True; it must be a whole number"),
        (deepseek(eos_token_id=[1, 512]), "eos_token_id must be within the vocabulary"),
        (deepseek(o_groups=0), "o_groups must be at least 1"),
        (deepseek(o_groups=3), "o_groups must divide num_attention_heads"),
        (deepseek(hc_sinkhorn_iters=0), "hc_sinkhorn_iters must be at least 1"),
        (deepseek(num_hidden_layers=0), "compress_ratios may hold"),
        (deepseek(compress_ratios=[0, 4, 128, 4, 8]), "compress_ratios may hold 0, 4 and 128 only"),
        (deepseek(compress_ratios=[0, 4, 128, 4, [4]]), "compress_ratios may hold 0, 4 and 128 only"),
        (deepseek(compress_ratios=[0, 4]), "compress_ratios must list one item for each of the 5 layers"),
        (deepseek(compress_ratios=4), "compress_ratios must list one item"),
        (deepseek(n_shared_experts=2), "n_shared_experts must be 1"),
        (deepseek(num_experts_per_tok=9), "num_experts_per_tok must be within n_routed_experts"),
        (deepseek(num_hash_layers=6), "num_hash_layers must be within num_hidden_layers"),
        (deepseek(qk_rope_head_dim=7), "qk_rope_head_dim must be even"),
        (deepseek(qk_rope_head_dim=18), "qk_rope_head_dim must be within index_head_dim"),
        (deepseek(qk_rope_head_dim=34), "qk_rope_head_dim must be within head_dim"),
        (deepseek(sliding_window=512), "sliding_window must be within 5..256"),
        (deepseek(eos_token_id=512), "eos_token_id must be within the vocabulary"),
        (deepseek(torch_dtype="float16"), "torch_dtype is 'float16'; supported: bfloat16"),
        (deepseek(rope_scaling="yarn"), "rope_scaling='yarn'; it must be an object"),
        (deepseek(rope_scaling={"type": "linear", "factor": 2}), "type is 'linear'; only 'yarn'"),
        (deepseek(rope_scaling={"type": "yarn"}), "lacks the field 'factor'"),
        (deepseek(rope_scaling={**DEEPSEEK["rope_scaling"], "mscale": 1.0}), "unknown rope field 'mscale'"),
        (deepseek(rope_scaling={**DEEPSEEK["rope_scaling"], "attention_factor": 1.1}), "attention_factor"),
        (transformers(rope_parameters={"mian": {}}), "unknown rope_parameters field 'mian': did you mean 'main'?"),
        (transformers(compress_rates={"compressed_sparse_attention": 8}), "only the ratios 4 and 128"),
        (transformers(compress_rates={"other": 4}), "only the ratios 4 and 128"),
        (transformers(layer_types=["full_attention"] * 5), "layer_types holds 'full_attention'; known: sliding"),
        (transformers(layer_types=["sliding_attention"]), "layer_types must list one item for each"),
        (transformers(layer_types=[["sliding_attention"]] * 5), "layer_types holds ['sliding_attention']"),
        (transformers(mlp_layer_types=["moe", "hash_moe", "moe", "moe", "moe"]), "hash_moe layers followed by"),
        (deepseek(compress_rates={"compressed_sparse_attention": 8}), "only the ratios 4 and 128"),
        (deepseek(dtype={"": "float32"}), "dtype is {'': 'float32'}; supported: bfloat16"),
    ],
)
def test_refused_with_a_clear_message(data: dict[str, Any], message: str) -> None:
    assert message in refused(data)


def rope(which: str, **changes: Any) -> dict[str, Any]:
    """transformers' rope_parameters with changes to one of its two groups."""
    groups = TRANSFORMERS["rope_parameters"]
    return {**groups, which: {**groups[which], **changes}}


@pytest.mark.parametrize(
    ("data", "one", "other"),
    [
        (
            transformers(qk_rope_head_dim=16),
            "qk_rope_head_dim is 16",
            "head_dim * partial_rotary_factor (32 * 0.25) is 8",
        ),
        (
            transformers(rope_parameters=rope("main", partial_rotary_factor=0.5)),
            "qk_rope_head_dim is 8",
            "head_dim * rope_parameters.main.partial_rotary_factor (32 * 0.5) is 16",
        ),
        (transformers(rope_theta=5e4), "rope_theta is 50000.0", "rope_parameters.main.rope_theta is 10000.0"),
        (
            transformers(rope_parameters=rope("compress", rope_theta=5e4)),
            "compress_rope_theta is 160000.0",
            "rope_parameters.compress.rope_theta is 50000.0",
        ),
        (
            deepseek(rope_scaling={**DEEPSEEK["rope_scaling"], "rope_theta": 7.0}),
            "rope_scaling.rope_theta is 7.0",
            "rope_theta is 10000.0 and compress_rope_theta is 160000.0",
        ),
        (
            transformers(rope_scaling={**DEEPSEEK["rope_scaling"], "factor": 4}),
            "rope_scaling is {'factor': 4.0",
            "rope_parameters.compress is {'factor': 16.0",
        ),
        (
            transformers(rope_scaling={"type": "default"}),
            "rope_scaling is {}",
            "rope_parameters.compress is {'factor': 16.0",
        ),
        (
            transformers(rope_parameters=rope("compress", type="default")),
            "rope_parameters.compress.type is 'default'",
            "rope_parameters.compress.rope_type is 'yarn'",
        ),
        (
            transformers(compress_ratios=[0, 4, 4, 4, 128]),
            "compress_ratios[2] is 4",
            "layer_types[2] is 'heavily_compressed_attention'",
        ),
        (transformers(num_hash_layers=3), "num_hash_layers is 3", "the number of hash_moe in mlp_layer_types is 2"),
        (deepseek(dtype="float32", torch_dtype="bfloat16"), "dtype is 'float32'", "torch_dtype is 'bfloat16'"),
    ],
)
def test_a_contradiction_names_both_fields(data: dict[str, Any], one: str, other: str) -> None:
    message = refused(data)
    assert message.startswith("config.json contradicts itself: ")
    assert one in message
    assert other in message


def test_fields_that_repeat_each_other_are_the_same_model() -> None:
    repeated = {key: DEEPSEEK[key] for key in ("compress_ratios", "num_hash_layers", "rope_scaling")}
    assert ModelConfig.from_dict(transformers(**repeated)) == CONFIG


def test_yarn_of_sliding_window_layers_is_refused() -> None:
    """transformers applies it; no V4 has it."""
    yarn = {**TRANSFORMERS["rope_parameters"]["compress"], "rope_theta": 1e4}
    message = refused(transformers(rope_parameters=rope("main", **yarn)))
    assert "rope_parameters.main.rope_type is 'yarn'; only 'default' is supported" in message


@pytest.mark.parametrize(
    ("data", "sign"),
    [
        (deepseek(vision_n_layers=32, vision_dim=1024), "it has vision_n_layers, vision_dim)"),
        (
            {"model_type": "deepseek_v4_vl", "text_config": DEEPSEEK, "vision_config": {}},
            "it has text_config, vision_c",
        ),
        ({"architectures": ["X"], "model_type": "deepseek_v4", "image_token_id": 5}, "it has image_token_id)"),
    ],
)
def test_a_multimodal_checkpoint_is_told_so(data: dict[str, Any], sign: str) -> None:
    message = refused(data)
    assert "this is a vision or other multimodal checkpoint" in message
    assert sign in message
    assert "only text models are supported, of model_type 'deepseek_v4'" in message


def test_another_architecture_of_the_same_type() -> None:
    message = refused(deepseek(architectures=["DeepseekV4ForConditionalGeneration"]))
    assert "architectures=['DeepseekV4ForConditionalGeneration']" in message
    assert "of model_type 'deepseek_v4' and architecture 'DeepseekV4ForCausalLM'" in message


def weights(folder: Path, *kinds: tuple[str, int], name: str = "model.safetensors") -> None:
    """A shard without data whose header tells of tensors with these types and sizes."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for i, (kind, size) in enumerate(kinds):
        header[f"t{i}"] = {"dtype": kind, "shape": [size], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    (folder / name).write_bytes(len(text).to_bytes(8, "little") + text)


@pytest.mark.parametrize(
    ("told", "kinds", "dtype", "quantised"),
    [
        pytest.param({}, [("F32", 90), ("BF16", 10), ("I64", 500)], "fp32", False, id="no type told"),
        pytest.param({}, [("F32", 10), ("BF16", 90)], "bf16", False, id="fp32 norms"),
        pytest.param({}, [("F64", 9)], "fp64", False, id="fp64"),
        pytest.param({"torch_dtype": "bfloat16"}, [("F32", 9)], "bf16", False, id="what is told is obeyed"),
        pytest.param({"expert_dtype": "fp4"}, [("BF16", 9)], "bf16", False, id="expert_dtype left behind"),
        pytest.param({"quantization_config": {"a": 1}}, [("BF16", 9)], "bf16", False, id="quantisation left behind"),
        pytest.param({"expert_dtype": "fp4"}, [("I8", 90), ("F8_E8M0", 9), ("BF16", 9)], "bf16", True, id="fp4"),
        pytest.param({}, [("F8_E4M3", 90), ("F32", 9), ("BF16", 8)], "fp32", True, id="fp8"),
        pytest.param({"expert_dtype": "fp4"}, [], "bf16", True, id="no weights yet"),
    ],
)
def test_the_weights_decide_their_types(
    tmp_path: Path, told: dict[str, Any], kinds: list[tuple[str, int]], dtype: str, quantised: bool
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(deepseek(**told)))
    if kinds:
        weights(tmp_path, *kinds)
    config = ModelConfig.from_path(tmp_path)
    assert (config.dtype, config.quantised) == (dtype, quantised)


def test_weights_that_are_still_being_fetched_decide_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(deepseek()))
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    weights(tmp_path, ("F32", 9), name="one.safetensors")
    assert ModelConfig.from_path(tmp_path).dtype == "bf16"
    weights(tmp_path, ("F32", 9), name="two.safetensors")
    assert ModelConfig.from_path(tmp_path).dtype == "fp32"


@pytest.mark.parametrize("content", [b"", b"1234", (1 << 40).to_bytes(8, "little") + b"{}", b"\2" + bytes(7) + b"[]"])
def test_a_damaged_shard_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(deepseek()))
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ConfigError, match=r"model\.safetensors is not a (complete|valid) safetensors file"):
        ModelConfig.from_path(tmp_path)


def test_from_path_takes_the_folder_or_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps(DEEPSEEK))
    assert ModelConfig.from_path(tmp_path) == ModelConfig.from_path(file) == CONFIG


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "does not exist"), ("{", "cannot read"), ("[1]", "does not hold a JSON object"), ("\xff", "cannot read")],
)
def test_from_path_refuses_a_bad_file(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content, encoding="latin-1")
    with pytest.raises(ConfigError, match=message):
        ModelConfig.from_path(tmp_path)
