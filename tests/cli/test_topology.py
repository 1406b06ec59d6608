from pathlib import Path
from typing import Any

import pytest

from v4_cli.topology import LocalConfig, Process, lost_role, processes, scrape_config, served_name, threads_per_worker
from v4_core.errors import ConfigError
from v4_core.settings import load
from v4_engine.options import ComputeOptions


def test_two_and_three_workers_and_the_router_that_knows_them() -> None:
    worker = {"threads": 9, "dtype": "fp64", "memory": None}
    config = LocalConfig(
        Path("/models/v4"), prefill=2, decode=3, compute=ComputeOptions("cpu"), worker=worker, log_format="json"
    )
    all_of_them = processes(config, 8000, [1, 2, 3, 4, 5], [11, 12, 13, 14, 15, 16])
    assert [one.name for one in all_of_them] == ["prefill-0", "prefill-1", "decode-0", "decode-1", "decode-2", "router"]
    assert [one.role for one in all_of_them] == ["prefill"] * 2 + ["decode"] * 3 + ["router"]
    assert all_of_them[3].settings == {
        "model": "/models/v4",
        "host": "127.0.0.1",
        "port": 4,
        "monitoring_port": 14,
        "device": "cpu",
        "dtype": "fp64",
        "format": "auto",
        "index_format": "auto",
        "log_format": "json",
        "drain_seconds": 5.0,
        "threads": 9,
    }
    assert all_of_them[-1].settings == {
        "model_path": "/models/v4",
        "served_name": "v4",
        "host": "127.0.0.1",
        "port": 8000,
        "monitoring_port": 16,
        "log_format": "json",
        "prefill": ["127.0.0.1:1", "127.0.0.1:2"],
        "decode": ["127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5"],
    }


def test_decode_alone() -> None:
    *workers, router = processes(LocalConfig(Path("m"), prefill=0), 1, [2], [3, 4])
    assert [one.name for one in workers] == ["decode-0"]
    assert router.settings["prefill"] == []


def test_prometheus_scrapes_each_process_with_its_name_and_role() -> None:
    config: Any = scrape_config(processes(LocalConfig(Path("m")), 1, [2, 3], [4, 5, 6]))
    (job,) = config["scrape_configs"]
    assert job["honor_labels"], "a metric's own role is kept"
    everywhere = {"namespace": "local", "deployment": "local"}
    assert job["static_configs"] == [
        {"targets": ["127.0.0.1:4"], "labels": {**everywhere, "pod": "prefill-0", "role": "prefill"}},
        {"targets": ["127.0.0.1:5"], "labels": {**everywhere, "pod": "decode-0", "role": "decode"}},
        {"targets": ["127.0.0.1:6"], "labels": {**everywhere, "pod": "router", "role": "router"}},
    ]


def test_the_served_name_is_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert served_name(Path(".")) == tmp_path.name


@pytest.mark.parametrize(("cpus", "workers", "threads"), [(2, 2, 1), (1, 4, 1), (16, 4, 4), (15, 4, 3)])
def test_threads(cpus: int, workers: int, threads: int) -> None:
    assert threads_per_worker(cpus, workers) == threads


def test_which_deaths_are_survived() -> None:
    *workers, router = processes(LocalConfig(Path("m"), prefill=1, decode=2), 1, [2, 3, 4], [5, 6, 7, 8])
    prefill, decode, _ = workers

    def without(*dead: Process) -> str | None:
        started = [*workers, router]
        return lost_role(started, [one for one in started if one not in dead])

    assert without() is None
    assert without(decode) is None
    assert without(prefill) == "prefill"
    assert without(*workers[1:]) == "decode"
    assert without(router) == "router"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"decode": 0}, "prefill is 1 and decode 0: give at least"),
        ({"prefill": -1}, "prefill is -1 and decode 1: give at least"),
        ({"port": 65536}, "port is 65536"),
        ({"start_timeout_seconds": 0.0}, "start_timeout_seconds is 0.0: give more than 0"),
        ({"dtype": "fp8"}, "dtype is 'fp8'; choose one of auto"),
        ({"format": "int3"}, "format is 'int3'; choose one of auto"),
        ({"device": "cuda"}, "worker: device cuda is not supported"),
        ({"worker": {"max_sequence": 4}}, "worker: unknown setting 'max_sequence': did you mean 'max_sequences'"),
        ({"worker": {"port": 4}}, "worker: port is chosen by the deployment"),
        ({"worker": {"log_format": "json"}}, "worker: log_format is chosen by the deployment"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(LocalConfig, None, {"model": Path("m"), **changes})
