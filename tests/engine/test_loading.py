"""Sizes of the cache as asked for: in slots or in bytes, and what cannot be."""

from pathlib import Path
from typing import Any

import pytest

from tests.tiny import tiny_checkpoint
from v4_core.errors import ConfigError
from v4_engine.loading import EngineOptions, load_engine


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model's folder."""
    return tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny")


def options(**given: Any) -> EngineOptions:
    """On the CPU."""
    return EngineOptions(device="cpu", **{"max_sequences": 2, **given})


def test_slots_are_allocated_as_asked(model: Path) -> None:
    engine = load_engine(model, options(slots=40)).engine
    assert engine.memory.slots == engine.pool.total == 40
    assert engine.memory.arena.nbytes == 40 * engine.geometry.slab_bytes
    assert engine.limits.max_model_len == (40 - engine.geometry.checkpoint_slots - 1) * 256


def test_too_few_slots_say_how_many_it_takes(model: Path) -> None:
    with pytest.raises(ConfigError, match="6 slots cannot hold one sequence of 2000 tokens") as found:
        load_engine(model, options(slots=6, max_model_len=2000))
    least = int(str(found.value).partition("that takes ")[2].partition(";")[0])
    assert load_engine(model, options(slots=least, max_model_len=2000)).engine.pool.total == least
    with pytest.raises(ConfigError, match="raise slots"):
        load_engine(model, options(slots=least - 1, max_model_len=2000))


def test_too_few_bytes_say_how_many_it_takes(model: Path) -> None:
    with pytest.raises(ConfigError, match="raise memory") as found:
        load_engine(model, options(cache_bytes=1000, max_model_len=2000))
    least = int(str(found.value).partition("that takes ")[2].partition(" B")[0])
    assert load_engine(model, options(cache_bytes=least, max_model_len=2000)).engine.limits.max_model_len == 2000


@pytest.mark.parametrize("size", [1 << 55, 1 << 80])
def test_memory_that_cannot_be_had_is_one_clear_error(model: Path, size: int) -> None:
    with pytest.raises(ConfigError, match="this machine does not give"):
        load_engine(model, options(cache_bytes=size))
