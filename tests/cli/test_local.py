"""The supervisor with real child processes that only play their roles (stand_in.py)."""

import asyncio
import json
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli import stand_in
from tests.cli.waiting import alive, gone, until
from tests.tiny_config import DEEPSEEK
from v4_cli.errors import DeploymentError
from v4_cli.local import Command, LocalDeployment, log_to_stderr
from v4_cli.main import run
from v4_cli.topology import HOST, LocalConfig, Process
from v4_core.errors import ConfigError


def play(process: Process, settings: Path) -> Sequence[str]:
    return [sys.executable, str(stand_in.__file__), process.role, str(settings)]


def playing(behaviour: str) -> Command:
    """Like `play`, but the workers misbehave."""
    return lambda process, settings: [*play(process, settings), behaviour]


@dataclass
class Lines:
    """Collects what a deployment logs."""

    lines: list[tuple[str, str]] = field(default_factory=list)

    def __call__(self, name: str, line: str) -> None:
        self.lines.append((name, line))

    def of(self, name: str) -> list[str]:
        return [line for owner, line in self.lines if owner == name]


def deployment(
    log: Lines, prefill: int = 1, decode: int = 1, port: int = 0, command: Command = play, **worker: object
) -> LocalDeployment:
    config = LocalConfig(Path("m"), prefill=prefill, decode=decode, port=port, worker=worker)
    return LocalDeployment(config, log=log, command=command)


def status(url: str) -> int:
    with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
        code: int = response.status
        return code


def children_of(one: LocalDeployment) -> list[int]:
    return list(one.pids.values())


async def test_ready_when_entered_and_gone_when_left(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    log = Lines()
    async with deployment(log, prefill=2, decode=1, device="cpu") as one:
        assert await asyncio.to_thread(status, one.url) == 200
        pids = children_of(one)
        assert len(set(pids)) == 4
        assert all(map(alive, pids))
        assert one.url == f"http://{one.addresses['router']}"
        assert log.of("prefill-1") == ["listening cpu"]
    assert gone(*pids)()
    own = log.of("v4serve")
    assert own[0] == "starting prefill-0, prefill-1, decode-0, router"
    assert own[-1].startswith("ready after")
    assert len(own) == 2, "an end that was asked for is not reported"
    assert "HTTP Request" not in caplog.text, "httpx logs every poll"


async def test_the_file_for_prometheus_names_what_was_started() -> None:
    async with deployment(Lines(), prefill=2) as one:
        (job,) = json.loads(one.prometheus.read_text())["scrape_configs"]
        pods = [target["labels"]["pod"] for target in job["static_configs"]]
        assert pods == list(one.pids) == ["prefill-0", "prefill-1", "decode-0", "router"]
        ports = {target for static in job["static_configs"] for target in static["targets"]}
        assert len(ports | set(one.addresses.values())) == 8
    assert not one.prometheus.exists()


def test_text_logs_have_one_time_per_line(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("v4serve", "ready")
    log_to_stderr("decode-0", "12:00:00 INFO v4serve.worker: ready")
    own, other = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"v4serve   \| \d\d:\d\d:\d\d ready", own)
    assert other == "decode-0  | 12:00:00 INFO v4serve.worker: ready"


async def test_a_death_is_reported_and_survived_until_the_last_of_a_role() -> None:
    log = Lines()
    async with deployment(log, prefill=2) as one:
        serving = asyncio.create_task(one.run())
        await one.kill("prefill", 0)
        await until(lambda: "prefill-0 has ended (SIGKILL)" in log.of("v4serve"))
        assert not serving.done()
        with pytest.raises(OSError, match="in use"):  # the port stays reserved
            socket.create_server((HOST, int(one.addresses["prefill-0"].rpartition(":")[2])))
        await one.kill("prefill", 1, signal.SIGTERM)
        with pytest.raises(DeploymentError, match=r"the last prefill worker has ended \(SIGTERM\)"):
            await asyncio.wait_for(serving, 10)
        pids = children_of(one)
    assert gone(*pids)()


async def test_nothing_goes_on_without_the_router() -> None:
    async with deployment(Lines()) as one:
        await one.kill("router")
        with pytest.raises(DeploymentError, match=r"the router has ended \(SIGKILL\)"):
            await asyncio.wait_for(one.run(), 10)


async def test_a_worker_that_cannot_start_stops_the_start() -> None:
    log = Lines()
    one = deployment(log, command=playing("dies"))
    with pytest.raises(DeploymentError, match=r"worker has ended \(exit code 3\): see its last log lines above"):
        await one.__aenter__()
    assert gone(*children_of(one))()
    assert "cannot load the model" in log.of("prefill-0") + log.of("decode-0")


async def test_a_folder_that_cannot_be_written_is_one_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    one = deployment(Lines())
    with pytest.raises(DeploymentError, match=r"the processes cannot be started: .*No such file"):
        await one.__aenter__()
    assert children_of(one) == []


async def test_a_start_that_never_ends_is_ended() -> None:
    config = LocalConfig(Path("m"), port=0, start_timeout_seconds=0.5)

    def silent(process: Process, settings: Path) -> Sequence[str]:
        return ["sleep", "600"]

    one = LocalDeployment(config, log=Lines(), command=silent)
    with pytest.raises(DeploymentError, match=r"not ready after 0.5 s"):
        await one.__aenter__()
    assert gone(*children_of(one))()


async def test_stubborn_workers_and_their_children_are_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_cli.local.STOP_SECONDS", 0.3)
    for behaviour in ("ignores SIGTERM", "has a child"):
        log = Lines()
        async with deployment(log, command=playing(behaviour)) as one:
            pids = children_of(one)
            told = [line for name in ("prefill-0", "decode-0") for line in log.of(name) if line.startswith("child")]
            pids += [int(line.split()[1]) for line in told]
            assert len(pids) == (5 if behaviour == "has a child" else 3)
            started = time.monotonic()
        assert time.monotonic() - started < 5
        await until(gone(*pids))


async def test_a_taken_port_is_reported_before_anything_starts() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        one = deployment(Lines(), port=port)
        with pytest.raises(ConfigError, match=f"port {port} is taken: choose another one as --port"):
            await one.__aenter__()
        assert children_of(one) == []


def test_a_taken_port_ends_the_command_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(DEEPSEEK))
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        assert run(["local", "--model", str(tmp_path), "--port", port]) == 2
    assert capsys.readouterr().err.startswith(f"error: port {port} is taken: choose another one as --port")


SERVE = """
import asyncio, sys
from pathlib import Path
from tests.cli.test_local import play
from v4_cli.local import serve
from v4_cli.processes import until_signal
from v4_cli.topology import LocalConfig
asyncio.run(until_signal(serve(LocalConfig(Path("m"), port=0, log_format=sys.argv[1]), play)))
"""
ROOT = Path(__file__).parents[2]


def supervisor(log_format: str = "human", errors: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", SERVE, log_format]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_a_signalled_supervisor_leaves_no_child(number: signal.Signals) -> None:
    with supervisor() as program:
        assert program.stdout is not None
        greeting = await asyncio.to_thread(program.stdout.readline)
        assert greeting.startswith(f"v4serve answers at http://{HOST}:")
        pids = children(program.pid)
        assert len(pids) == 3
        program.send_signal(number)
        code = await asyncio.to_thread(program.wait, 10)
        assert code == (-signal.SIGKILL if number == signal.SIGKILL else 0)
        await until(gone(*pids))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_a_supervisor_signalled_while_it_starts_leaves_no_child() -> None:
    with supervisor() as program:
        await until(lambda: len(children(program.pid)) > 0)
        pids = children(program.pid)
        os.kill(program.pid, signal.SIGTERM)
        assert await asyncio.to_thread(program.wait, 10) == 0
        await until(gone(*pids))


async def test_the_log_of_all_processes_is_json_where_it_is_asked_for() -> None:
    with supervisor("json", subprocess.PIPE) as program:
        assert program.stdout is not None
        await asyncio.to_thread(program.stdout.readline)
        program.send_signal(signal.SIGTERM)
        _, errors = await asyncio.to_thread(program.communicate, timeout=10)
    entries = [json.loads(line) for line in errors.splitlines()]
    said = {(entry["process"], entry["message"]) for entry in entries}
    assert said >= {("v4serve", "starting prefill-0, decode-0, router"), ("decode-0", "listening auto")}
    assert all(list(entry) == ["time", "level", "logger", "message", "process"] for entry in entries)
