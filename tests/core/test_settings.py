from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from v4_core.errors import ConfigError
from v4_core.settings import Bytes, load, parse_bytes


@dataclass(frozen=True)
class Limits:
    sequences: int = 8
    memory: Bytes | None = None


@dataclass(frozen=True)
class Settings:
    model: Path
    port: int = 8000
    ratio: float = 0.5
    name: str = "v4"
    verbose: bool = False
    device: Literal["auto", "cpu", "cuda"] = "auto"
    workers: tuple[str, ...] = ()
    parent: Path | None = None
    limits: Limits = field(default_factory=Limits)
    handed_on: Mapping[str, object] = field(default_factory=dict)
    size: int | str = "auto"

    def __post_init__(self) -> None:
        if self.port < 0:
            raise ConfigError(f"port must not be negative, not {self.port}")


def from_yaml(tmp_path: Path, text: str, **overrides: object) -> Settings:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    return load(Settings, file, overrides)


def test_every_kind_of_field(tmp_path: Path) -> None:
    text = """
model: ~/m
port: 9000
ratio: 1
name: x
verbose: true
device: cpu
workers: [a:1, b:2]
parent: /p
limits:
  sequences: 3
  memory: 1.5GiB
handed_on: {any: [1, x]}
size: 5
"""
    assert from_yaml(tmp_path, text) == Settings(
        model=Path.home() / "m",
        port=9000,
        ratio=1.0,
        name="x",
        verbose=True,
        device="cpu",
        workers=("a:1", "b:2"),
        parent=Path("/p"),
        limits=Limits(3, 3 * 2**29),
        handed_on={"any": [1, "x"]},
        size=5,
    )


def test_flags_override_the_file_and_none_is_no_flag(tmp_path: Path) -> None:
    settings = from_yaml(tmp_path, "{model: m, port: 1, name: file}", port=2, name=None, workers=("a",))
    assert (settings.port, settings.name, settings.workers) == (2, "file", ("a",))


def test_no_file_and_an_empty_file(tmp_path: Path) -> None:
    assert load(Settings, None, {"model": Path("m")}) == from_yaml(tmp_path, "", model="m") == Settings(Path("m"))


def test_a_built_group_may_be_an_override() -> None:
    assert load(Settings, None, {"model": "m", "limits": Limits(1)}).limits == Limits(1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{model: m, prot: 1}", "unknown setting 'prot': did you mean 'port'?"),
        ("{model: m, limits: {sequence: 1}}", "unknown setting 'limits.sequence': did you mean 'limits.sequences'"),
        ("{model: m, 3: 1}", "unknown setting '3'"),
        ("port: 1", "missing: model; give each as a flag or in the --config file"),
        ("{model: m, port: '1'}", "port must be a whole number, not '1'"),
        ("{model: m, port: true}", "port must be a whole number, not True"),
        ("{model: m, port: 1.5}", "port must be a whole number, not 1.5"),
        ("{model: m, port: null}", "port must be a whole number, not None"),
        ("{model: m, ratio: .inf}", "ratio must be a finite number, not inf"),
        ("{model: m, ratio: .nan}", "ratio must be a finite number, not nan"),
        (f"{{model: m, ratio: {10**400}}}", "ratio must be a finite number, not 1000"),
        ("{model: m, ratio: true}", "ratio must be a number, not True"),
        ("{model: m, port: 1, port: 2}", "'port' occurs twice"),
        ("{model: m, port: 0x_}", "is not YAML"),
        ("{model: m, ratio: high}", "ratio must be a number, not 'high'"),
        ("{model: m, name: 1}", "name must be text, not 1"),
        ("{model: m, verbose: 1}", "verbose must be true or false, not 1"),
        ("{model: 1}", "model must be a path, not 1"),
        ("{model: m, device: gpu}", "device is 'gpu'; choose one of auto, cpu, cuda"),
        ("{model: m, device: [cpu]}", "device is ['cpu']; choose one of auto, cpu, cuda"),
        ("{model: m, workers: 'a:1'}", "workers must be a list, not 'a:1'"),
        ("{model: m, workers: [a, 1]}", "workers[1] must be text, not 1"),
        ("{model: m, handed_on: 8}", "handed_on must be a group of settings, not 8"),
        ("{model: m, size: 1.5}", "size must be text, not 1.5"),
        ("{model: m, limits: 8}", "limits must be a group of settings, not 8"),
        ("{model: m, limits: {memory: lots}}", "limits.memory: 'lots' is not a size"),
        ("{model: m, port: -1}", "port must not be negative, not -1"),
        ("[1, 2]", "must hold `key: value` lines, not a list"),
        ("{", "is not YAML"),
    ],
)
def test_refused_naming_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as info:
        from_yaml(tmp_path, text)
    assert str(info.value).startswith(f"{tmp_path / 'settings.yaml'}: ")
    assert message in str(info.value)
    assert "\n" not in str(info.value)


def test_refused_without_a_file_naming_the_key_alone() -> None:
    with pytest.raises(ConfigError, match=r"^port must not be negative"):
        load(Settings, None, {"model": "m", "port": -1})


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none.yaml: cannot be read: .*No such file"):
        load(Settings, tmp_path / "none.yaml", {})


def test_an_annotation_without_a_meaning_is_the_programmers_error() -> None:
    @dataclass(frozen=True)
    class Odd:
        when: complex = 0j

    with pytest.raises(TypeError, match="settings cannot hold"):
        load(Odd, None, {"when": "now"})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (0, 0),
        (123, 123),
        ("123", 123),
        ("123B", 123),
        ("141GB", 141 * 10**9),
        ("9.62GiB", round(9.62 * 2**30)),
        ("1 kb", 1000),
        ("1KiB", 1024),
        ("2TB", 2 * 10**12),
        (" 1.5 mib ", 3 * 2**19),
    ],
)
def test_parse_bytes(text: str | int, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1", -1, True, "1XB", "1e9", "1.GB", "1 2", None, 1.5, "²GB"])
def test_parse_bytes_refuses(text: Any) -> None:
    with pytest.raises(ConfigError, match="is not a size: write bytes, or a number with KB"):
        parse_bytes(text)


@given(st.integers(0, 2**60))
def test_a_whole_number_of_any_size_is_exact(value: int) -> None:
    assert parse_bytes(f"{value}KiB") == value * 1024
