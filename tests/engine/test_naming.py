"""The three naming schemes of tensors, each round-tripped through the installed transformers, and omitted tensors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.harness import GREEDY
from tests.oracle import oracle
from tests.tiny import TINY, tiny_checkpoint, tiny_config, tiny_tensors
from v4_core import settings
from v4_core.shards import weight_files
from v4_engine.errors import WeightsError
from v4_engine.generate import generate as run
from v4_engine.loading import Loaded, load_engine
from v4_engine.naming import is_draft
from v4_engine.options import EngineOptions
from v4_engine.sequence import Request
from v4_engine.weights import expected_shapes, read

CONFIG = tiny_config()


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One model in every naming scheme."""
    folder = tmp_path_factory.mktemp("checkpoints")
    model = oracle({}, tiny_tensors(CONFIG))
    model.save_pretrained(folder / "default")
    model.save_pretrained(folder / "shards", max_shard_size="500KB")
    model.save_pretrained(folder / "modules", save_original_format=False)
    tiny_checkpoint(folder / "deepseek")
    return {path.name: path for path in folder.iterdir()}


def names(path: Path) -> set[str]:
    """Return the tensor names of a checkpoint as they are stored."""
    return {name for file in weight_files(path) for name in load_file(file)}


def test_transformers_writes_these_names(checkpoints: dict[str, Path]) -> None:
    """The other tests show something only if transformers really writes these names."""
    assert "layers.1.attn.kv_norm.weight" in names(checkpoints["deepseek"])
    assert "model.layers.1.attn.norm.weight" in names(checkpoints["default"])
    assert "model.layers.1.self_attn.kv_norm.weight" in names(checkpoints["modules"])
    assert names(checkpoints["default"]) == names(checkpoints["shards"])
    assert len(weight_files(checkpoints["shards"])) > 1


@pytest.mark.parametrize("scheme", ["deepseek", "default", "shards", "modules"])
def test_every_naming_scheme_gives_the_same_tensors(checkpoints: dict[str, Path], scheme: str) -> None:
    theirs = dict(read(CONFIG, weight_files(checkpoints[scheme])))
    ours = tiny_tensors(CONFIG)
    assert theirs.keys() == ours.keys() == expected_shapes(CONFIG).keys()
    assert all(torch.equal(theirs[name], ours[name]) for name in ours)


def load(path: Path) -> Loaded:
    """Load a checkpoint into a small engine."""
    return load_engine(path, settings.load(EngineOptions, None, {"device": "cpu", "slots": 40, "max_sequences": 2}))


def greedy(loaded: Loaded) -> list[int]:
    """Return the ids that follow one prompt."""
    request = Request(("r", 0), "whole", list(range(2, 50)), max_tokens=4, sampling=GREEDY)
    return [token.drawn.id for token in run(loaded.engine, [request])]


def test_a_folder_as_saved_is_served_and_pairs_with_every_other(checkpoints: dict[str, Path]) -> None:
    """Config and weights are not converted. All folders have one fingerprint and give the same answer."""
    loaded = [load(path) for path in checkpoints.values()]
    assert len({one.fingerprint for one in loaded}) == 1
    answers = [greedy(one) for one in loaded]
    assert answers == [answers[0]] * len(checkpoints)


@pytest.mark.parametrize("scheme", ["default", "modules"])
def test_transformers_reads_back_what_is_loaded_here(checkpoints: dict[str, Path], scheme: str) -> None:
    from transformers import DeepseekV4ForCausalLM

    theirs: Any = DeepseekV4ForCausalLM.from_pretrained(checkpoints[scheme], attn_implementation="eager")
    ours = oracle({}, dict(read(CONFIG, weight_files(checkpoints[scheme])))).state_dict()
    assert theirs.state_dict().keys() == ours.keys()
    assert all(torch.equal(tensor, ours[name]) for name, tensor in theirs.state_dict().items())


def saved(folder: Path, **extra: Tensor) -> list[Path]:
    """Write the tiny model with further tensors."""
    save_file(tiny_tensors(CONFIG) | extra, folder / "model.safetensors")
    return weight_files(folder)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("mtp.0.enorm.weight", True),
        ("model.mtp.0.e_proj.weight", True),
        ("mtp.2.markov_head.markov_w1.weight", True),
        ("mtp.enorm.weight", False),
        ("layers.5.attn_norm.weight", False),  # a layer beyond the config's number of layers must not be ignored
        ("model.layers.0.mtp.0.weight", False),
    ],
)
def test_draft_modules_are_left_out_by_their_names(tmp_path: Path, name: str, expected: bool) -> None:
    assert is_draft(name) == expected
    files = saved(tmp_path, **{name: torch.full((64,), float("nan"))})
    if expected:
        assert dict(read(CONFIG, files)).keys() == expected_shapes(CONFIG).keys()
    else:
        with pytest.raises(WeightsError, match=rf"{name.removeprefix('model.')}: unexpected"):
            next(read(CONFIG, files))


def test_quantised_draft_modules_are_no_obstacle(tmp_path: Path) -> None:
    assert dict(read(CONFIG, saved(tmp_path, **{"mtp.0.wq.scale": torch.zeros(4, dtype=torch.uint8)})))


def test_a_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    files = saved(tmp_path, **{"model.layers.1.attn.norm.weight": torch.ones(32)})
    with pytest.raises(WeightsError, match=r"layers\.1\.attn\.kv_norm\.weight: stored twice"):
        next(read(CONFIG, files))


@pytest.mark.parametrize("shape", [(), (8,), (8, 64), (8, 63, 64), (8, 1, 64)])
def test_fused_experts_of_another_shape_are_reported(tmp_path: Path, shape: tuple[int, ...]) -> None:
    files = saved(tmp_path, **{"model.layers.1.mlp.experts.gate_up_proj": torch.zeros(shape)})
    with pytest.raises(WeightsError, match=r"layers\.1\.ffn\.experts\.gate_up_proj: unexpected"):
        next(read(CONFIG, files))


def test_fp32_weights_without_a_type_in_their_config_run_in_fp32(tmp_path: Path) -> None:
    path = tiny_checkpoint(tmp_path)
    (path / "config.json").write_text(json.dumps({k: v for k, v in TINY.items() if k != "torch_dtype"}))
    loaded = load(path)
    assert loaded.engine.geometry.storage == "fp32"
    assert loaded.engine._model._params.embed.dtype == torch.float32
