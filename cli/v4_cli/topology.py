"""The processes of a local deployment: their settings, which ones it cannot serve without, and how to scrape them.

Pure: starts no process.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal

from v4_cli.model import demo_model
from v4_core.errors import ConfigError
from v4_core.logs import LogFormat
from v4_core.settings import FLAT, Setting, load
from v4_engine.options import ComputeOptions
from v4_worker.config import WorkerConfig

Role = Literal["router", "prefill", "decode"]

HOST = "127.0.0.1"
SCRAPE_LABELS = {"namespace": "local", "deployment": "local"}  # expected by rules and dashboards, with pod and role
DRAIN_SECONDS = 5.0  # for running requests after SIGTERM; less than the supervisor's STOP_SECONDS
# Settings of workers that are chosen by the deployment and cannot be given.
_OWN = ("model", "host", "port", "monitoring_port", "token_file", "log_format")


@dataclass(frozen=True)
class LocalConfig:
    """Settings of `v4serve local`. Raises ConfigError if a value cannot be used."""

    model: Annotated[Path, Setting("Folder of a checkpoint; by default the model shipped with v4serve.")] = field(
        default_factory=demo_model
    )
    prefill: Annotated[int, Setting("Number of prefill workers; 0: decode workers compute prompts too.")] = 1
    decode: Annotated[int, Setting("Number of decode workers.")] = 1
    port: Annotated[int, Setting("Port of the router's API; 0: any free port.")] = 8000
    compute: Annotated[ComputeOptions, FLAT] = field(default_factory=ComputeOptions)
    worker: Annotated[Mapping[str, object], Setting("Further settings of every worker.", None)] = field(
        default_factory=dict
    )
    start_timeout_seconds: Annotated[
        float, Setting("Seconds until the first token must have gone through router, prefill and decode.", None)
    ] = 600.0
    log_format: Annotated[
        LogFormat, Setting("Format of the log of all processes: human, or json with one object per line.")
    ] = "human"

    def __post_init__(self) -> None:
        if self.prefill < 0 or self.decode < 1:
            raise ConfigError(
                f"prefill is {self.prefill} and decode {self.decode}: give at least 0 prefill and 1 decode workers"
            )
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port is {self.port}: give a port between 0 and 65535")
        if self.start_timeout_seconds <= 0:
            raise ConfigError(f"start_timeout_seconds is {self.start_timeout_seconds}: give more than 0")
        if own := [name for name in _OWN if name in self.worker]:
            raise ConfigError(f"worker: {own[0]} is chosen by the deployment: leave it out")
        try:  # checked here, so that the user gets one error instead of one from every child
            load(WorkerConfig, None, _worker_settings(self, 0))
        except ConfigError as error:
            raise ConfigError(f"worker: {error}") from None


@dataclass(frozen=True)
class Process:
    """A process to start."""

    name: str  # router, prefill-0, decode-1
    role: Role
    settings: Mapping[str, object] = field(hash=False)  # the content of its --config file


def processes(
    config: LocalConfig, router_port: int, worker_ports: Sequence[int], monitoring_ports: Sequence[int]
) -> tuple[Process, ...]:
    """Returns the prefill workers, the decode workers and then their router.

    `worker_ports`: one for each worker, in this order. `monitoring_ports`: one for each process, in this order.
    """
    ports = {"prefill": worker_ports[: config.prefill], "decode": worker_ports[config.prefill :]}
    roles: tuple[Role, Role] = ("prefill", "decode")
    workers = [
        Process(f"{role}-{i}", role, _worker_settings(config, port))
        for role in roles
        for i, port in enumerate(ports[role])
    ]
    router: dict[str, object] = {
        "model_path": str(config.model),
        "served_name": served_name(config.model),
        "host": HOST,
        "port": router_port,
        "log_format": config.log_format,
        **{role: [f"{HOST}:{port}" for port in ports[role]] for role in roles},
    }
    return tuple(
        replace(process, settings={**process.settings, "monitoring_port": port})
        for process, port in zip((*workers, Process("router", "router", router)), monitoring_ports, strict=True)
    )


def scrape_config(started: Iterable[Process]) -> Mapping[str, object]:
    """Returns a Prometheus configuration that scrapes these processes."""
    targets = [
        {
            "targets": [f"{HOST}:{process.settings['monitoring_port']}"],
            "labels": {**SCRAPE_LABELS, "pod": process.name, "role": process.role},
        }
        for process in started
    ]
    job = {"job_name": "v4serve", "honor_labels": True, "scrape_interval": "5s", "static_configs": targets}
    return {"scrape_configs": [job]}


def served_name(model: Path) -> str:
    """Returns the model name that clients send as `model`: the name of the checkpoint's folder."""
    return model.resolve().name


def _worker_settings(config: LocalConfig, port: int) -> dict[str, object]:
    return {
        "model": str(config.model),
        "host": HOST,
        "port": port,
        **vars(config.compute),
        "log_format": config.log_format,
        "drain_seconds": DRAIN_SECONDS,
        **{name: value for name, value in config.worker.items() if value is not None},  # None = not given
    }


def threads_per_worker(cpus: int, workers: int) -> int:
    """Returns the compute threads of each worker: an equal share of the CPUs, since more threads would compete."""
    return max(1, cpus // workers)


def lost_role(started: Iterable[Process], running: Iterable[Process]) -> Role | None:
    """Returns a role without which the deployment cannot serve, because all its processes have ended; else None."""
    left = Counter(process.role for process in running)
    return next((process.role for process in started if not left[process.role]), None)
