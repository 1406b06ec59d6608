"""Which processes a local deployment has, what each is told, and which it cannot do without. Starts none.

It also says how Prometheus finds them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from v4_cli.model import demo_model
from v4_core.errors import ConfigError
from v4_core.logs import LogFormat
from v4_core.settings import load
from v4_worker.config import WorkerConfig

Role = Literal["router", "prefill", "decode"]

HOST = "127.0.0.1"
SCRAPE_LABELS = {"namespace": "local", "deployment": "local"}  # beside pod and role, as rules and dashboards expect
DRAIN_SECONDS = 5.0  # for running requests, within the supervisor's own patience
# Settings of workers that the deployment chooses.
_OWN = ("model", "host", "port", "monitoring_port", "token_file", "log_format")


@dataclass(frozen=True)
class LocalConfig:
    """Settings of `v4serve local`. Raises ConfigError on values that cannot be used."""

    model: Path = field(default_factory=demo_model)  # folder of a checkpoint
    prefill: int = 1  # workers; 0 = decode workers compute prompts too
    decode: int = 1  # workers
    port: int = 8000  # of the router; 0 = any free one
    device: Literal["auto", "cpu", "cuda"] = "auto"
    dtype: str = "auto"  # of computing; auto = the checkpoint's own
    format: str = "auto"  # of stored rows; auto = the checkpoint's own
    worker: Mapping[str, object] = field(default_factory=dict)  # further settings of every worker
    start_timeout_seconds: float = 600.0  # until the first token went through router, prefill and decode
    log_format: LogFormat = "human"  # of every process

    def __post_init__(self) -> None:
        if self.prefill < 0 or self.decode < 1:
            raise ConfigError("a deployment needs at least one decode worker and no negative number of prefill workers")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port is {self.port}: give one between 0 and 65535")
        if self.start_timeout_seconds <= 0:
            raise ConfigError("start_timeout_seconds must be greater than 0")
        if own := [name for name in _OWN if name in self.worker]:
            raise ConfigError(f"worker: {own[0]} is chosen by the deployment: leave it out")
        try:  # told here, by one line, and not by every child
            load(WorkerConfig, None, _worker_settings(self, 0))
        except ConfigError as error:
            raise ConfigError(f"worker: {error}") from None


@dataclass(frozen=True)
class Process:
    """One process to start."""

    name: str  # router, prefill-0, decode-1
    role: Role
    settings: Mapping[str, object] = field(hash=False)  # what its --config file says


def processes(
    config: LocalConfig, router_port: int, worker_ports: Sequence[int], monitoring_ports: Sequence[int]
) -> tuple[Process, ...]:
    """Workers, prefill first, each on its port of `worker_ports`, then the router that knows them all.

    Each of them answers Prometheus on its port of `monitoring_ports`.
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
    """A configuration with which Prometheus sees them."""
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
    """What clients send as `model`: the checkpoint's folder name."""
    return model.resolve().name


def _worker_settings(config: LocalConfig, port: int) -> dict[str, object]:
    return {
        "model": str(config.model),
        "host": HOST,
        "port": port,
        "device": config.device,
        "dtype": config.dtype,
        "format": config.format,
        "log_format": config.log_format,
        "drain_seconds": DRAIN_SECONDS,
        **{name: value for name, value in config.worker.items() if value is not None},  # None = not given
    }


def threads_per_worker(cpus: int, workers: int) -> int:
    """Compute threads of each worker: an equal share of the machine, since more would only wait for each other."""
    return max(1, cpus // workers)


def lost_role(started: Iterable[Process], running: Iterable[Process]) -> Role | None:
    """A role of which processes were started and none runs any more: the deployment cannot serve without it."""
    left = Counter(process.role for process in running)
    return next((process.role for process in started if not left[process.role]), None)
