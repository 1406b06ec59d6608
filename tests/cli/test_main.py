import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_config import DEEPSEEK
from v4_cli.errors import DeploymentError, exit_code, needs
from v4_cli.main import app, run
from v4_core.errors import ConfigError, GeometryError, RequestError


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plam"], "No such command 'plam'. Did you mean 'plan'?"),
        (["plan", "--modl", "x"], "No such option: --modl"),
        (["plan", "--format", "int8"], "Invalid value for '--format'"),
        (["plan"], "missing: model, context"),
        (["plan", "--model", "flush", "--context", "1"], "'flush' is neither a profile"),
        (["plan", "--model", "pro", "--context", "1", "--memory", "much"], "memory: 'much' is not a size"),
        (["plan", "--config", "none.yaml"], "none.yaml: cannot be read"),
        (["local", "--model", "nowhere"], "nowhere does not exist"),
        (["local", "--model", "m", "--decode", "0"], "prefill is 1 and decode 0: give at least"),
        (["demo", "--model", "nowhere"], "nowhere does not exist"),
        (["prefill"], "missing: model"),
        (["decode", "--model", "m", "--port", "70000"], "port must be within 0..65535"),
        (["decode", "--model", "m", "--format", "int8"], "format is 'int8'; choose one of auto"),
        (["local", "--dtype", "fp8"], "dtype is 'fp8'; choose one of auto"),
        (["local", "--format", "int3"], "format is 'int3'; choose one of auto"),
        (["router"], "missing: model_path, served_name"),
        (["router", "--model", "m", "--served-name", "v4"], "no decode worker is given"),
        (["router", "--model", "nowhere", "--served-name", "v4", "--decode", "a:1"], "nowhere"),
        (
            ["router", "--model", "m", "--served-name", "v4", "--prefill", "x", "--decode", "a:1"],
            "'x' is not the address of a worker",
        ),
        (["generate", "--model", "m"], "missing: prompt"),
        (["generate", "--model", "m", "--prompt", "x", "--max-tokens", "0"], "ask for at least one token"),
        (["generate", "--model", "m", "--prompt", "x", "--top-p", "2"], "top_p must be greater than 0 and at most 1"),
        (["generate", "--model", "m", "--prompt", "x", "--seed", "-1"], "seed is -1: give a number between 0 and"),
    ],
)
def test_a_users_mistake_is_one_line_and_exit_code_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
    assert captured.err.count("\n") == 1


def test_with_json_logs_the_error_is_json_too(tmp_path: Path) -> None:
    flags = ["--model", str(tmp_path), "--served-name", "v4", "--decode", "a:1", "--log-format", "json"]
    command = [sys.executable, "-m", "v4_cli.main", "router", *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    entry = json.loads(ended.stderr)
    assert (entry["level"], entry["logger"]) == ("ERROR", "v4serve")
    assert str(tmp_path) in entry["message"]


def test_an_unknown_key_of_a_file_names_the_nearest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, key, near in (("plan", "contxt", "context"), ("local", "prefil", "prefill")):
        file = tmp_path / f"{command}.yaml"
        file.write_text(f"{key}: 1")
        assert run([command, "--config", str(file)]) == 2
        assert capsys.readouterr().err == f"error: {file}: unknown setting {key!r}: did you mean {near!r}?\n"


def test_a_bad_worker_setting_is_reported_before_workers_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "local.yaml"
    file.write_text("worker: {max_sequence: 4}")
    for command in ("local", "demo"):
        assert run([command, "--config", str(file)]) == 2
        error = capsys.readouterr().err
        assert error == f"error: {file}: worker: unknown setting 'max_sequence': did you mean 'max_sequences'?\n"


def test_a_full_disk_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    assert run(["local", "--model", str(tmp_path), "--port", "0"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: the processes cannot be started: ")
    assert error.count("\n") == 1


def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 0
    overview = capsys.readouterr().out
    assert "Exit codes" in overview
    for command in ("local", "demo", "generate", "plan", "router", "prefill", "decode"):
        assert command in overview
        assert run([command, "--help"]) == 0
        assert "--config" in capsys.readouterr().out


def test_help_is_wrapped_by_the_width_of_the_terminal_alone() -> None:
    """Typer keeps the line breaks of a docstring in all paragraphs but the first."""
    for command in app.registered_commands:
        assert command.callback is not None
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        assert [one for one in paragraphs[1:] if "\n" in one] == []


def test_exit_codes() -> None:
    codes = {ConfigError: 2, GeometryError: 2, RequestError: 1, DeploymentError: 1}
    assert {kind: exit_code(kind("x")) for kind in codes} == codes


def test_a_missing_package_is_reported_with_its_extra() -> None:
    with (
        pytest.raises(ConfigError, match=r"needs the package 'torch': run python -m pip install -e '.\[worker\]'"),
        needs("worker"),
    ):
        raise ModuleNotFoundError("No module named 'torch.nn'", name="torch.nn")
    with pytest.raises(ModuleNotFoundError), needs("worker"):
        raise ModuleNotFoundError("No module named 'v4_engine.x'", name="v4_engine.x")


def test_the_module_runs_as_a_program_and_needs_no_torch(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    code = (
        "import sys; sys.modules['torch'] = None; import v4_cli.main as m; "
        "sys.argv[1:] = ['plan', '--model', 'pro', '--context', '8']; m.main()"
    )
    without_torch = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (without_torch.returncode, without_torch.stderr) == (0, "")
    wrong = subprocess.run(
        [sys.executable, "-m", "v4_cli.main", "plan", "--model", str(tmp_path), "--context", "0"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "40"},
    )
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr == "error: context is 0: give at least one token\n"
