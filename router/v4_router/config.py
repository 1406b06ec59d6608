"""The settings of one router process. Reads no file and no environment: the command line builds it."""

from dataclasses import dataclass
from pathlib import Path

from v4_core.errors import ConfigError


@dataclass(frozen=True)
class RouterConfig:
    """Where the model's folder and the workers are. Raises ConfigError on values that cannot be used."""

    model_path: Path  # holds tokenizer.json and, for the default chat mode, generation_config.json
    served_name: str  # the `model` of requests
    prefill: tuple[str, ...] = ()  # host:port of each prefill worker; empty = decode workers compute prompts too
    decode: tuple[str, ...] = ()  # host:port of each decode worker, at least one
    host: str = "127.0.0.1"
    port: int = 8000
    request_timeout_seconds: float = 3600.0  # from arrival to the last token
    connect_timeout_seconds: float = 5.0  # for a worker to describe itself; silent workers are asked again
    segment_cache_bytes: int = 256 << 20  # tokenized chat segments kept

    def __post_init__(self) -> None:
        if not self.served_name:
            raise ConfigError("served_name is empty: give the name that clients send as `model`")
        if not self.decode:
            raise ConfigError("no decode worker is given: name at least one as host:port")
        workers = self.prefill + self.decode
        for address in workers:
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or not 0 < int(port) < 65536:
                raise ConfigError(f"worker address {address!r} is not host:port")
        if len(set(workers)) < len(workers):
            raise ConfigError("a worker address is given twice: each worker has one role and is named once")
        if not 0 <= self.port < 65536:
            raise ConfigError(f"port is {self.port}: give one between 0 and 65535")
        if self.request_timeout_seconds <= 0 or self.connect_timeout_seconds <= 0:
            raise ConfigError("timeouts must be greater than 0 seconds")
        if self.segment_cache_bytes < 0:
            raise ConfigError("segment_cache_bytes must not be negative")
