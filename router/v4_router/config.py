"""The settings of a router process. This module reads no file and no environment: the command line does."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from v4_core.errors import ConfigError
from v4_core.hosts import is_loopback
from v4_core.logs import LogFormat
from v4_core.settings import Setting
from v4_router.policy import Policy


@dataclass(frozen=True)
class RouterConfig:
    """Settings of a router. Raises ConfigError if a value cannot be used."""

    model_path: Annotated[
        Path, Setting("Folder of tokenizer.json and, for the default chat mode, generation_config.json.", "--model")
    ]
    served_name: Annotated[str, Setting("Model name that clients send as `model`.")]
    prefill: Annotated[
        tuple[str, ...],
        Setting("host:port of a prefill worker; repeat for more. Without any, decode workers compute prompts too."),
    ] = ()
    decode: Annotated[
        tuple[str, ...], Setting("host:port of a decode worker; repeat for more. At least one, or a deployment.")
    ] = ()
    namespace: Annotated[str, Setting("Namespace of the deployment.")] = ""
    deployment: Annotated[
        str, Setting("Name of a V4Deployment whose pods are the workers, instead of worker addresses.")
    ] = ""
    host: Annotated[str, Setting("Address to listen on.")] = "127.0.0.1"
    port: Annotated[int, Setting("Port to listen on.")] = 8000
    monitoring_port: Annotated[
        int, Setting("HTTP port of /health, /ready, /metrics, /fleet and /facts, without API keys; 0: none.")
    ] = 0
    token_file: Annotated[
        Path | None, Setting("File with the secret that workers demand; it is reloaded when it changes.")
    ] = None
    api_keys: Annotated[
        Path | None,
        Setting("YAML file of API keys, one `key: tenant` per line; it is reloaded when it changes."),
    ] = None
    insecure: Annotated[bool, Setting("Allow listening on a non-loopback address without API keys.")] = False
    policy: Annotated[
        Path | Policy, Setting("The keys of the policy, or a YAML file of them, which is reloaded when it changes.")
    ] = field(default_factory=Policy)
    drain_seconds: Annotated[
        float, Setting("Seconds that running streams may continue after SIGTERM before they are ended.")
    ] = 2.0
    connect_timeout_seconds: Annotated[
        float, Setting("Seconds that a worker may take to describe itself and to accept its stream.", None)
    ] = 5.0
    segment_cache_bytes: Annotated[int, Setting("Bytes of the cache of tokenized chat segments.", None)] = 256 << 20
    log_format: Annotated[LogFormat, Setting("Format of the log: human, or json with one object per line.")] = "human"

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
