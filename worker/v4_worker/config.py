"""The settings of one worker process. Sizes are in bytes, times in seconds."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from v4_core.errors import ConfigError
from v4_core.hosts import is_loopback
from v4_core.logs import LogFormat
from v4_core.settings import FLAT, Setting
from v4_engine.options import EngineOptions


@dataclass(frozen=True)
class WorkerConfig:
    """The settings of a prefill or decode worker. Raises ConfigError if a value cannot be used."""

    model: Annotated[Path, Setting("Folder of a checkpoint; demo: the model shipped with v4serve.")]
    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Setting("Port to listen on; 0: any free port, which the log names.")] = 0
    monitoring_port: Annotated[int, Setting("HTTP port of /health, /ready and /metrics, without a token; 0: none.")] = 0
    token_file: Annotated[
        Path | None,
        Setting("File with the secret that routers and other workers must send; it is reloaded when it changes."),
    ] = None
    insecure: Annotated[bool, Setting("Allow listening on a non-loopback address without a token_file.")] = False
    engine: Annotated[EngineOptions, FLAT] = field(default_factory=EngineOptions)
    threads: Annotated[int, Setting("Compute threads; 0: torch decides.")] = 0
    lease_seconds: Annotated[
        float, Setting("Seconds that a finished prefill's cache is kept while no decode worker pulls it.")
    ] = 30.0
    pull_timeout_seconds: Annotated[float, Setting("Seconds without a byte after which a pull of a cache fails.")] = (
        30.0
    )
    drain_seconds: Annotated[
        float, Setting("Seconds that running requests may continue after SIGTERM before they are handed back.")
    ] = 30.0
    log_format: Annotated[LogFormat, Setting("Format of the log: human, or json with one object per line.")] = "human"

    def __post_init__(self) -> None:
        checks = [
            (
                self.engine.compute.device != "cuda",
                "device cuda is not supported by prefill and decode workers yet, because a cache in GPU memory cannot "
                "be transferred: use cpu, or `v4serve generate`, which runs one engine on a GPU",
            ),
            (0 <= self.port < 65536, "port must be within 0..65535"),
            (0 <= self.monitoring_port < 65536, "monitoring_port must be within 0..65535"),
            (
                not self.port or self.port != self.monitoring_port,
                f"port and monitoring_port are both {self.port}: choose two different ports",
            ),
            (
                self.insecure or self.token_file is not None or is_loopback(self.host),
                f"host {self.host} can be reached from other machines, and without token_file anyone there can read "
                "prompts and caches: give the file of a secret that router and workers share, or set insecure",
            ),
            (self.threads >= 0, "threads must not be negative"),
            (self.lease_seconds > 0, "lease_seconds must be positive"),
            (self.pull_timeout_seconds > 0, "pull_timeout_seconds must be positive"),
            (self.drain_seconds >= 0, "drain_seconds must not be negative"),
        ]
        for holds, message in checks:
            if not holds:
                raise ConfigError(message)
