"""The name by which users call the program."""

import os
import sys
from pathlib import Path

import pytest

from tests.cli.test_top import answering
from v4_cli.main import run
from v4_cli.program_name import shell_name


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Creates a program in a folder."""
    path = tmp_path / "main" / ".venv" / "bin" / "v4serve"
    path.parent.mkdir(parents=True)
    path.touch()
    return path


def test_a_program_that_is_not_on_the_path_is_called_by_its_path(installed: Path, tmp_path: Path) -> None:
    started = str(installed)
    assert shell_name(started, None, tmp_path / "main") == ".venv/bin/v4serve"
    assert shell_name(".venv/bin/v4serve", None, tmp_path / "main") == ".venv/bin/v4serve"
    assert shell_name(started, "/usr/bin/v4serve", tmp_path / "main") == ".venv/bin/v4serve", "another one is there"
    assert shell_name(started, None, installed.parent) == "./v4serve"
    assert shell_name("/opt/v4serve", None, Path("/home/alice/models")) == "/opt/v4serve", "it is shorter"
    assert shell_name("my venv/v4serve", None, tmp_path) == "'my venv/v4serve'"


def test_a_program_on_the_path_is_called_by_its_name(installed: Path, tmp_path: Path) -> None:
    assert shell_name(str(installed), str(installed), tmp_path) == "v4serve"
    link = tmp_path / "bin" / "v4serve"
    link.parent.mkdir()
    link.symlink_to(installed)
    assert shell_name(str(link), str(link), tmp_path) == shell_name(str(installed), str(link), tmp_path) == "v4serve"


def test_a_module_is_called_by_the_name(tmp_path: Path) -> None:
    assert shell_name("/x/v4_cli/main.py", None, tmp_path) == "v4serve"


def test_hints_call_the_program_by_its_path(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [os.path.relpath(installed), "top"])
    with answering({}, 404) as url:
        assert run(["top", url]) == 1
    assert f", then {shell_name(str(installed), None, Path.cwd())} top http://127.0.0.1:9100" in capsys.readouterr().err
