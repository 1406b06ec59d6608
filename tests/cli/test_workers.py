"""The worker commands: every setting has its flag, and `demo` is the shipped model."""

from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

import pytest

import v4_decode.main
import v4_prefill.main
from v4_cli.main import run
from v4_core.settings import keys
from v4_models import DEMO_MODEL
from v4_worker.config import WorkerConfig

EVERY = {
    "model": "m",
    "host": "::1",
    "port": "5102",
    "monitoring_port": "9102",
    "token_file": "token",
    "insecure": "",
    "device": "cpu",
    "dtype": "fp32",
    "format": "fp64",
    "index_format": "bf16",
    "memory": "64MB",
    "max_sequences": "3",
    "max_model_len": "1000",
    "chunk_tokens": "128",
    "max_waiting": "5",
    "checkpoint_every": "2",
    "threads": "1",
    "lease_seconds": "7.5",
    "pull_timeout_seconds": "8",
    "drain_seconds": "9",
    "log_format": "json",
}


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[WorkerConfig]:
    """Captures the settings with which a worker is started, without running it."""
    configs: list[WorkerConfig] = []
    monkeypatch.setattr(v4_decode.main, "run", configs.append)
    monkeypatch.setattr(v4_prefill.main, "run", configs.append)
    return configs


def flags(settings: dict[str, str]) -> list[str]:
    """Returns the settings as flags."""
    return [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", value) if part]


def values(config: Any) -> dict[str, Any]:
    """Returns the values of a config by key, with those of its groups."""
    found: dict[str, Any] = {}
    for name, value in vars(config).items():
        found |= values(value) if is_dataclass(value) else {name: value}
    return found


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_every_setting_has_a_flag_of_its_name(role: str, started: list[WorkerConfig]) -> None:
    assert set(EVERY) | {"slots"} == {key.name for key in keys(WorkerConfig)}
    assert run([role, *flags(EVERY)]) == 0
    assert run([role, "--model", "m", "--slots", "40"]) == 0
    given, with_slots = started
    assert with_slots.engine.slots == 40
    assert {name: str(values(given)[name]) for name in EVERY} == EVERY | {
        "insecure": "True",
        "pull_timeout_seconds": "8.0",
        "drain_seconds": "9.0",
    }


def test_demo_is_the_shipped_model_and_a_folder_of_that_name_is_not(started: list[WorkerConfig]) -> None:
    assert run(["decode", "--model", "demo"]) == run(["decode", "--model", "./demo"]) == 0
    assert [config.model for config in started] == [DEMO_MODEL, Path("demo")]
    assert started[0].model.is_dir()


def test_a_public_address_needs_a_token(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["decode", "--model", "demo", "--host", "0.0.0.0"]) == 2
    error = capsys.readouterr().err
    assert "token_file" in error
    assert "insecure" in error


def test_a_token_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["decode", "--model", "demo", "--token-file", str(tmp_path / "none")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: token_file")
    assert error.count("\n") == 1
