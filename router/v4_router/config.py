"""The settings of one router process. Reads no file and no environment: the command line builds it."""

from dataclasses import dataclass, field
from pathlib import Path

from v4_core.errors import ConfigError
from v4_core.hosts import is_loopback
from v4_core.logs import LogFormat
from v4_router.policy import Policy


@dataclass(frozen=True)
class RouterConfig:
    """Where the model's folder and the workers are. Raises ConfigError on values that cannot be used."""

    model_path: Path  # holds tokenizer.json and, for the default chat mode, generation_config.json
    served_name: str  # the `model` of requests
    prefill: tuple[str, ...] = ()  # host:port of each prefill worker; empty = decode workers compute prompts too
    decode: tuple[str, ...] = ()  # host:port of each decode worker, at least one unless a deployment is given
    namespace: str = ""  # of the deployment
    deployment: str = ""  # name of a V4Deployment, whose pods are watched instead of naming workers
    host: str = "127.0.0.1"
    port: int = 8000
    monitoring_port: int = 0  # HTTP, open to all: /health, /ready, /metrics, /fleet, /facts; 0 = none
    token_file: Path | None = None  # its content is shown to workers; read again when it changes
    api_keys: Path | None = None  # YAML file, `key: tenant` a line; read again when it changes
    insecure: bool = False  # listen beyond loopback without keys
    policy: Path | Policy = field(default_factory=Policy)  # its keys, or a YAML file of them that may change
    drain_seconds: float = 2.0  # for running streams after SIGTERM
    connect_timeout_seconds: float = 5.0  # for a worker to describe itself and begin its stream
    segment_cache_bytes: int = 256 << 20  # tokenized chat segments kept
    log_format: LogFormat = "human"

    @property
    def expects_prefill(self) -> bool:
        """Whether prompts are meant to be computed by prefill workers."""
        return bool(self.prefill or self.deployment)

    def __post_init__(self) -> None:
        if not self.served_name:
            raise ConfigError("served_name is empty: give the name that clients send as `model`")
        self._check_workers()
        for name in ("port", "monitoring_port"):
            if not 0 <= (port := getattr(self, name)) < 65536:
                raise ConfigError(f"{name} is {port}: give one between 0 and 65535")
        if self.port and self.port == self.monitoring_port:
            raise ConfigError(f"monitoring_port is {self.port}, as is port: choose another")
        if not (self.insecure or self.api_keys or is_loopback(self.host)):
            raise ConfigError(
                f"host {self.host} can be reached from other machines, and without api_keys anybody there may use the "
                "model: give a file of keys, or say insecure"
            )
        if self.connect_timeout_seconds <= 0 or self.drain_seconds < 0:
            raise ConfigError("connect_timeout_seconds must be greater than 0, and drain_seconds not negative")
        if self.segment_cache_bytes < 0:
            raise ConfigError("segment_cache_bytes must not be negative")

    def _check_workers(self) -> None:
        workers = self.prefill + self.decode
        if bool(self.namespace) != bool(self.deployment):
            raise ConfigError("namespace and deployment belong together: give both, or neither")
        if self.deployment and workers:
            raise ConfigError("workers are named and a deployment is given: leave one of the two out")
        if not self.deployment and not self.decode:
            raise ConfigError("no decode worker is given: name at least one as host:port")
        for address in workers:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"worker address {address!r} is not host:port")
        if len(set(workers)) < len(workers):
            raise ConfigError("a worker address is given twice: each worker has one role and is named once")
