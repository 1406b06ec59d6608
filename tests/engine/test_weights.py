"""Checkpoints: shards, digests, and one error that lists all problems. test_naming.py tests names of tensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.harness import CPU
from tests.tiny import TINY, tiny_checkpoint, tiny_config, tiny_tensors
from v4_core.errors import ConfigError
from v4_core.fingerprint import TensorDigest
from v4_core.settings import load
from v4_core.shards import weight_files
from v4_engine.errors import WeightsError
from v4_engine.loading import load_engine
from v4_engine.options import EngineOptions
from v4_engine.params import build
from v4_engine.weights import hashed, read

CONFIG = tiny_config()


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
    with pytest.raises(ConfigError, match="part-1"):
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


def test_damaged_and_absent_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no \*\.safetensors"):
        weight_files(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors at all")
    with pytest.raises(WeightsError, match="not a valid safetensors"):
        dict(read(CONFIG, weight_files(tmp_path)))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e8m0fnu, torch.int8, torch.uint8])
def test_quantised_tensors_are_refused(tmp_path: Path, kind: torch.dtype) -> None:
    name = "layers.1.ffn.experts.3.w1.weight"
    stored = {name: torch.zeros(32, 32, dtype=torch.uint8).view(kind)}
    save_file(tiny_tensors(CONFIG) | stored, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"{name} in .*model.safetensors is .*, but .* not supported yet: convert"):
        next(read(CONFIG, weight_files(tmp_path)))


@pytest.mark.parametrize("left", [{"expert_dtype": "fp4"}, {"quantization_config": {"quant_method": "fp8"}}])
def test_a_conversion_that_left_its_quantisation_in_the_config(tmp_path: Path, left: dict[str, Any]) -> None:
    path = tiny_checkpoint(tmp_path, torch_dtype="bfloat16", **left)
    loaded = load_engine(path, load(EngineOptions, None, {"device": "cpu", "memory": 64 << 20, "max_sequences": 2}))
    assert not loaded.engine.config.quantised


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 1000, -1])
def test_a_value_that_is_not_finite_is_reported_with_its_file(
    tmp_path: Path, dtype: torch.dtype, value: float, place: int
) -> None:
    name = "layers.2.attn.wq_b.weight"
    tensors = tiny_tensors(CONFIG, dtype=dtype)
    tensors[name].view(-1)[place] = value
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(WeightsError, match=rf"model\.safetensors: {name} holds a NaN or an infinity: download"):
        dict(read(CONFIG, weight_files(tmp_path)))


def test_the_largest_and_the_least_of_numbers_are_finite(tmp_path: Path) -> None:
    tensors = tiny_tensors(CONFIG, dtype=torch.bfloat16)
    extremes = torch.finfo(torch.bfloat16)
    tensors["norm.weight"][:4] = torch.tensor([extremes.max, extremes.min, extremes.tiny, 0.0])
    save_file(tensors, tmp_path / "model.safetensors")
    assert torch.equal(dict(read(CONFIG, weight_files(tmp_path)))["norm.weight"], tensors["norm.weight"])


def digests(tensors: Mapping[str, torch.Tensor]) -> dict[str, TensorDigest]:
    """Return the digests of tensors."""
    noted: dict[str, TensorDigest] = {}
    passed = dict(hashed(tensors.items(), noted))
    assert passed.keys() == noted.keys() == tensors.keys()
    return noted


def test_every_byte_type_and_shape_is_in_a_digest() -> None:
    base = torch.zeros(4, 4096, dtype=torch.bfloat16)
    variants = {"base": base, "flat": base.view(-1), "half": base.to(torch.float16), "wide": base.view(torch.float32)}
    for place in (0, 5, 4096, 16383):
        variants[str(place)] = base.clone()
        variants[str(place)].view(torch.int16).view(-1)[place] = 1
    found = digests(variants)
    assert len(set(found.values())) == len(variants)
    assert (found["base"].dtype, found["base"].shape, len(found["base"].xxh3)) == ("bfloat16", (4, 4096), 16)


def test_a_digest_covers_the_values_and_not_their_layout() -> None:
    columns = torch.arange(12.0).view(3, 4).T
    found = digests({"one": columns, "two": columns.contiguous()})
    assert found["one"] == found["two"]
    assert digests({"scalar": torch.tensor(1.0), "empty": torch.zeros(0)}).keys() == {"scalar", "empty"}


def test_params_hold_every_value_once() -> None:
    tensors = tiny_tensors(CONFIG)
    params = build(CONFIG, tensors.items(), torch.float32, CPU)
    layer = params.layers[1]
    assert torch.equal(layer.in_proj[:24], tensors["layers.1.attn.wq_a.weight"])
    assert torch.equal(layer.w13[3, :32], tensors["layers.1.ffn.experts.3.w1.weight"])
    assert layer.state_proj is not None
    assert torch.equal(layer.state_proj[:32], tensors["layers.1.attn.compressor.wkv.weight"][:32])
    assert torch.equal(layer.state_proj[32:64], tensors["layers.1.attn.compressor.wgate.weight"][:32])
    with pytest.raises(WeightsError, match="tensors are missing"):
        build(CONFIG, list(tensors.items())[1:], torch.float32, CPU)


def test_bf16_checkpoint_loads_in_its_own_type(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path, torch_dtype="bfloat16")
    assert load_file(path / "model.safetensors")["embed.weight"].dtype == torch.bfloat16
    loaded = load_engine(path, load(EngineOptions, None, {"device": "cpu", "memory": 64 << 20, "max_sequences": 2}))
    assert loaded.engine.geometry.storage == "bf16"
    assert TINY["torch_dtype"] == "float32"
