"""Settings of a worker: what cannot be is refused with the field's name."""

from pathlib import Path

import pytest

from v4_core.errors import ConfigError
from v4_core.settings import load
from v4_worker.config import WorkerConfig


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device", "tpu"),
        ("device", "cuda"),
        ("dtype", "fp16"),
        ("memory", "much"),
        ("format", "int8"),
        ("index_format", "int4"),
        ("port", 70000),
        ("monitoring_port", 70000),
        ("slots", -1),
        ("max_sequences", 0),
        ("chunk_tokens", 1),
        ("max_model_len", -1),
        ("lease_seconds", 0.0),
        ("drain_seconds", -1.0),
    ],
)
def test_a_bad_value_names_its_field(field: str, value: object) -> None:
    with pytest.raises(ConfigError, match=field):
        load(WorkerConfig, None, {"model": Path("m"), field: value})


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "worker.example"])
def test_beyond_loopback_it_takes_a_token_or_a_word(host: str) -> None:
    with pytest.raises(ConfigError, match="token_file"):
        WorkerConfig(Path("m"), host=host)
    assert WorkerConfig(Path("m"), host=host, insecure=True).host == host
    assert WorkerConfig(Path("m"), host=host, token_file=Path("token")).host == host


def test_slots_and_memory_exclude_each_other() -> None:
    with pytest.raises(ConfigError, match="slots and memory"):
        load(WorkerConfig, None, {"model": Path("m"), "slots": 10, "memory": "1GB"})
    assert load(WorkerConfig, None, {"model": Path("m"), "slots": 10}).engine.slots == 10


def test_one_port_cannot_be_two() -> None:
    with pytest.raises(ConfigError, match="monitoring_port"):
        WorkerConfig(Path("m"), port=5101, monitoring_port=5101)


def test_an_unknown_key_names_the_nearest(tmp_path: Path) -> None:
    file = tmp_path / "worker.yaml"
    file.write_text("model: m\nlease_second: 3\n")
    with pytest.raises(ConfigError, match="lease_seconds"):
        load(WorkerConfig, file, {})
