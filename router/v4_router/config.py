"""The settings of a router process. This module reads no file and no environment: the command line does."""

from dataclasses import dataclass, field
from pathlib import Path

from v4_core.errors import ConfigError
from v4_core.hosts import is_loopback
from v4_core.logs import LogFormat
from v4_router.policy import Policy


@dataclass(frozen=True)
class RouterConfig:
    """Settings of a router. Raises ConfigError if a value cannot be used."""

    model_path: Path  # holds tokenizer.json and, for the default chat mode, generation_config.json
    served_name: str  # the model name that clients send as `model`
    prefill: tuple[str, ...] = ()  # host:port of each prefill worker; empty = decode workers compute prompts too
    decode: tuple[str, ...] = ()  # host:port of each decode worker; at least one, unless a deployment is given
    namespace: str = ""  # namespace of the V4Deployment
    deployment: str = ""  # name of a V4Deployment, whose pods are watched to find workers
    host: str = "127.0.0.1"
    port: int = 8000
    monitoring_port: int = 0  # HTTP port of /health, /ready, /metrics, /fleet, /facts, without keys; 0 = none
    token_file: Path | None = None  # file with the secret that workers demand; read again when it changes
    api_keys: Path | None = None  # YAML file with one `key: tenant` per line; read again when it changes
    insecure: bool = False  # allow listening on a non-loopback address without API keys
    policy: Path | Policy = field(default_factory=Policy)  # the policy, or its YAML file, read again when it changes
    drain_seconds: float = 2.0  # how long running streams may go on after SIGTERM
    connect_timeout_seconds: float = 5.0  # longest time for a worker to describe itself and accept its stream
    segment_cache_bytes: int = 256 << 20  # size of the cache of tokenized chat segments
    log_format: LogFormat = "human"

    @property
    def expects_prefill(self) -> bool:
        """Whether prefill workers are configured to compute prompts."""
        return bool(self.prefill or self.deployment)

    def __post_init__(self) -> None:
        if not self.served_name:
            raise ConfigError("served_name is empty: give the model name that clients send as `model`")
        self._check_workers()
        for name in ("port", "monitoring_port"):
            if not 0 <= (port := getattr(self, name)) < 65536:
                raise ConfigError(f"{name} is {port}: give a port between 0 and 65535")
        if self.port and self.port == self.monitoring_port:
            raise ConfigError(f"port and monitoring_port are both {self.port}: give two different ports")
        if not (self.insecure or self.api_keys or is_loopback(self.host)):
            raise ConfigError(
                f"host {self.host} can be reached from other machines, and without api_keys anyone there can use the "
                "model: give a file of keys as api_keys, or set insecure"
            )
        if self.connect_timeout_seconds <= 0:
            raise ConfigError(f"connect_timeout_seconds is {self.connect_timeout_seconds}: give more than 0")
        for name in ("drain_seconds", "segment_cache_bytes"):
            if (value := getattr(self, name)) < 0:
                raise ConfigError(f"{name} is {value}: give 0 or more")

    def _check_workers(self) -> None:
        workers = self.prefill + self.decode
        if bool(self.namespace) != bool(self.deployment):
            raise ConfigError("only one of namespace and deployment is given: give both, or neither")
        if self.deployment and workers:
            raise ConfigError("both a deployment and worker addresses are given: give one of the two")
        if not self.deployment and not self.decode:
            raise ConfigError("no decode worker is given: give the host:port of at least one, or a deployment")
        for address in workers:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"{address!r} is not the address of a worker: give host:port")
            if workers.count(address) > 1:
                raise ConfigError(f"worker {address} is given twice: give each worker once, as prefill or as decode")
