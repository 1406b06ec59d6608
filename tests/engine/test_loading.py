"""Sizes of the cache in slots or bytes, errors for sizes that are too small, and what a model's fingerprint covers."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny import TINY, tiny_checkpoint
from v4_core.errors import ConfigError
from v4_core.fingerprint import difference
from v4_core.settings import load
from v4_engine import loading
from v4_engine.generate import output_ids
from v4_engine.loading import load_engine
from v4_engine.options import EngineOptions
from v4_engine.sequence import Request


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny model."""
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


def options(**given: Any) -> EngineOptions:
    """Return engine options for the CPU."""
    return load(EngineOptions, None, {"device": "cpu", **{"max_sequences": 2, **given}})


def test_slots_are_allocated_as_asked(model: Path) -> None:
    engine = load_engine(model, options(slots=40)).engine
    assert engine.memory.slots == engine.pool.total == 40
    assert engine.memory.arena.nbytes == 40 * engine.geometry.slab_bytes
    assert engine.scheduler.config.max_model_len == (40 - engine.geometry.checkpoint_slots - 1) * 256


def test_too_few_slots_say_how_many_it_takes(model: Path) -> None:
    with pytest.raises(ConfigError, match="6 slots of 25088 B cannot hold one sequence of 2000 tokens") as found:
        load_engine(model, options(slots=6, max_model_len=2000))
    least = int(str(found.value).partition("that takes ")[2].partition(",")[0])
    assert load_engine(model, options(slots=least, max_model_len=2000)).engine.pool.total == least
    with pytest.raises(ConfigError, match="raise slots"):
        load_engine(model, options(slots=least - 1, max_model_len=2000))


def test_too_few_bytes_say_how_many_it_takes(model: Path) -> None:
    with pytest.raises(ConfigError, match="raise memory") as found:
        load_engine(model, options(memory=1000, max_model_len=2000))
    least = int(str(found.value).partition("that takes ")[2].partition(" B")[0])
    assert load_engine(model, options(memory=least, max_model_len=2000)).engine.scheduler.config.max_model_len == 2000


@pytest.mark.parametrize("size", [1 << 55, 1 << 80])
def test_a_failed_allocation_is_one_clear_error(model: Path, size: int) -> None:
    with pytest.raises(ConfigError, match="this machine cannot allocate"):
        load_engine(model, options(memory=size))


def tiny_blocks(path: Path) -> Path:
    """Write a model whose layers have only a window. Its blocks have no entries, but its checkpoints have rows."""
    return tiny_checkpoint(path / "windows", compress_ratios=[0] * TINY["num_hidden_layers"])


def test_too_few_slots_of_tiny_blocks_say_that_a_checkpoint_takes_them(tmp_path: Path) -> None:
    path = tiny_blocks(tmp_path)
    with pytest.raises(ConfigError) as found:
        load_engine(path, options(slots=40))
    assert str(found.value) == (
        "40 slots of 128 B cannot hold one sequence of 2 tokens: that takes 82, of which 80 are for a checkpoint; "
        "raise slots, or give memory instead"
    )
    assert load_engine(path, options(slots=82)).engine.scheduler.config.max_model_len == 256


def test_too_few_bytes_say_what_takes_them(model: Path) -> None:
    with pytest.raises(ConfigError, match=r"takes 550400 B, of which 475136 are for tails and 25088 for a checkpoint;"):
        load_engine(model, options(memory=500_000))


@pytest.mark.parametrize("length", [0, 300])
def test_a_cache_of_default_size_holds_a_sequence_however_large_tails_and_checkpoints_are(
    model: Path, tmp_path: Path, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "_CPU_CACHE_BYTES", 50_000)  # less than one tail, as 1 GiB is for large models
    for path in (model, tiny_blocks(tmp_path)):
        engine = load_engine(path, options(max_model_len=length)).engine
        assert engine.scheduler.config.max_model_len == (length or 256)
        ((*output,),) = output_ids(engine, Request(("r", 0), "whole", [5] * 200, max_tokens=3))
        assert len(output) == 3


@pytest.mark.parametrize("name", ["layers.1.ffn.experts.3.w2.weight", "hc_head_scale", "layers.0.ffn.gate.tid2eid"])
def test_one_bit_of_any_tensor_changes_the_fingerprint(model: Path, tmp_path: Path, name: str) -> None:
    tensors = load_file(model / "model.safetensors")
    value = tensors[name].view(torch.int32).view(-1)
    value[len(value) // 3 // 2 * 2] ^= 1
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes((model / "config.json").read_bytes())
    one, other = (load_engine(path, options(slots=40)).fingerprint for path in (model, tmp_path))
    assert re.fullmatch(r"weights \(\w+ here, \w+ there\)", difference(one, other))


def test_end_of_sequence_ids_are_in_the_fingerprint(model: Path, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to(model / "model.safetensors")
    data = json.loads((model / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(data | {"eos_token_id": [1, 9]}))
    one, other = (load_engine(path, options(slots=40)).fingerprint for path in (model, tmp_path))
    assert difference(one, other) == "eos_token_id (1 here, 1,9 there)"


def test_limits_and_sizes_are_not_in_the_fingerprint(model: Path) -> None:
    one, other = (load_engine(model, options(slots=slots)).fingerprint for slots in (40, 50))
    assert one == other
