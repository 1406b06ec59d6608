"""Checkpoints: both spellings of names, shards, and one error that lists everything that is wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.harness import CPU
from tests.tiny import TINY, tiny_checkpoint, tiny_config, tiny_tensors
from v4_engine.errors import WeightsError
from v4_engine.loading import EngineOptions, load_engine
from v4_engine.params import build
from v4_engine.weights import expected_shapes, read, weight_files

CONFIG = tiny_config()


def names_of_transformers() -> dict[str, torch.Tensor]:
    """The tiny model as transformers would save it."""
    from tests.oracle import oracle

    return {name: tensor.contiguous() for name, tensor in oracle({}, tiny_tensors(CONFIG)).state_dict().items()}


def test_transformers_names_give_the_same_tensors(tmp_path: Path) -> None:
    save_file(names_of_transformers(), tmp_path / "model.safetensors")
    theirs = dict(read(CONFIG, weight_files(tmp_path)))
    ours = tiny_tensors(CONFIG)
    assert theirs.keys() == ours.keys() == expected_shapes(CONFIG).keys()
    assert all(torch.equal(theirs[name].to(ours[name].dtype), ours[name]) for name in ours)


def test_shards_by_index(tmp_path: Path) -> None:
    tensors = list(tiny_tensors(CONFIG).items())
    half = len(tensors) // 2
    weight_map: dict[str, str] = {}
    for i, part in enumerate((tensors[:half], tensors[half:])):
        save_file(dict(part), tmp_path / f"part-{i}.safetensors")
        weight_map |= {name: f"part-{i}.safetensors" for name, _ in part}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    seen: list[tuple[int, int]] = []
    loaded = dict(read(CONFIG, weight_files(tmp_path), lambda done, total: seen.append((done, total))))
    assert len(loaded) == len(tensors)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    (tmp_path / "part-1.safetensors").unlink()
    with pytest.raises(WeightsError, match="part-1"):
        weight_files(tmp_path)


def test_one_error_lists_all_that_is_wrong(tmp_path: Path) -> None:
    tensors = tiny_tensors(CONFIG)
    del tensors["layers.1.attn.wq_a.weight"]
    tensors["layers.2.ffn.w9"] = torch.zeros(1)
    tensors["norm.weight"] = torch.zeros(3)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError) as raised:
        dict(read(CONFIG, weight_files(tmp_path)))
    message = str(raised.value)
    assert "layers.1.attn.wq_a.weight: missing" in message
    assert "layers.2.ffn.w9: unexpected" in message
    assert "norm.weight: shape [3], expected [64]" in message


def test_draft_layers_are_left_out(tmp_path: Path) -> None:
    save_file(tiny_tensors(CONFIG) | {"mtp.0.enorm.weight": torch.zeros(64)}, tmp_path / "model.safetensors")
    assert "mtp.0.enorm.weight" not in dict(read(CONFIG, weight_files(tmp_path)))


def test_damaged_and_absent_files(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"no \*\.safetensors"):
        weight_files(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(WeightsError, match="no readable safetensors"):
        dict(read(CONFIG, weight_files(tmp_path)))


def test_quantised_checkpoints_are_refused(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, quantization_config={"quant_method": "fp8"})
    with pytest.raises(WeightsError, match="not supported yet"):
        load_engine(path, EngineOptions(device="cpu"))


def test_params_hold_every_value_once() -> None:
    tensors = tiny_tensors(CONFIG)
    params = build(CONFIG, tensors.items(), torch.float32, CPU)
    layer = params.layers[1]
    assert torch.equal(layer.in_proj[:24], tensors["layers.1.attn.wq_a.weight"])
    assert torch.equal(layer.w13[3, :32], tensors["layers.1.ffn.experts.3.w1.weight"])
    assert layer.state_proj is not None
    assert torch.equal(layer.state_proj[:32], tensors["layers.1.attn.compressor.wkv.weight"][:32])
    assert torch.equal(layer.state_proj[32:64], tensors["layers.1.attn.compressor.wgate.weight"][:32])
    with pytest.raises(WeightsError, match="never given"):
        build(CONFIG, list(tensors.items())[1:], torch.float32, CPU)


def test_bf16_checkpoint_loads_in_its_own_type(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, torch_dtype="bfloat16")
    assert load_file(path / "model.safetensors")["embed.weight"].dtype == torch.bfloat16
    loaded = load_engine(path, EngineOptions(device="cpu", cache_bytes=64 << 20, max_sequences=2))
    assert loaded.engine.geometry.storage == "bf16"
    assert TINY["torch_dtype"] == "float32"
