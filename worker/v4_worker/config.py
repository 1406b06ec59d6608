"""Settings of one worker process. Sizes in bytes, times in seconds; 0 or "auto" = chosen from model and device."""

from dataclasses import dataclass
from pathlib import Path

from v4_core.errors import ConfigError
from v4_core.formats import INDEX_FORMATS, STORAGE_FORMATS
from v4_core.hosts import is_loopback
from v4_core.logs import LogFormat
from v4_core.settings import parse_bytes

_DEVICES = ("auto", "cpu", "cuda")
_DTYPES = ("auto", "bf16", "fp32", "fp64")


@dataclass(frozen=True)
class WorkerConfig:
    """One prefill or decode worker."""

    model: Path  # checkpoint folder
    host: str = "127.0.0.1"
    port: int = 0  # 0 = any free one, printed at start
    monitoring_port: int = 0  # HTTP, open to all: /health, /ready, /metrics; 0 = none
    token_file: Path | None = None  # whose content routers and other workers must show; read again when it changes
    insecure: bool = False  # listen beyond loopback without a token
    device: str = "auto"  # auto | cpu; auto = cpu as long as caches in GPU memory cannot be transferred
    dtype: str = "auto"  # of compute; auto = the checkpoint's own
    format: str = "auto"  # of raw rows and entries; auto = dtype
    index_format: str = "auto"  # of indexer keys; auto = format
    memory: int | str = "auto"  # cache memory, "80GB" or bytes; auto = 1 GiB, or what one sequence takes if more
    slots: int = 0  # block slots of 256 tokens, instead of memory; 0 = as many as memory holds
    max_sequences: int = 16  # live tails: sequences that run, arrive or are leased
    max_model_len: int = 0  # tokens of prompt and output; 0 = what model and memory allow
    chunk_tokens: int = 512  # of one step
    max_waiting: int = 256  # requests beyond which new ones are refused
    checkpoint_every: int = 0  # blocks; 0 = where prompts end or leave a chain
    threads: int = 0  # torch threads; 0 = torch's choice
    lease_seconds: float = 30.0  # that a finished prefill is kept without a pull
    pull_timeout_seconds: float = 30.0  # without a byte from the other side
    drain_seconds: float = 30.0  # for running requests after SIGTERM
    log_format: LogFormat = "human"

    @property
    def cache_bytes(self) -> int:
        """Of `memory`; 0 = auto. Raises ConfigError."""
        if self.memory == "auto":
            return 0
        try:
            return parse_bytes(self.memory)
        except ConfigError as error:
            raise ConfigError(f"memory: {error}") from None

    def __post_init__(self) -> None:
        checks = [
            (self.cache_bytes >= 0, "memory must not be negative"),
            (self.device in _DEVICES, f"device must be one of {', '.join(_DEVICES)}"),
            (
                self.device != "cuda",
                "device cuda is not supported by prefill and decode workers yet, since a cache in GPU memory cannot be "
                "transferred: use cpu, or `v4serve generate`, which runs one engine on a GPU",
            ),
            (self.dtype in _DTYPES, f"dtype must be one of {', '.join(_DTYPES)}"),
            (self.format in ("auto", *STORAGE_FORMATS), f"format must be auto or one of {', '.join(STORAGE_FORMATS)}"),
            (
                self.index_format in ("auto", *INDEX_FORMATS),
                f"index_format must be auto or one of {', '.join(INDEX_FORMATS)}",
            ),
            (0 <= self.port < 65536, "port must be within 0..65535"),
            (0 <= self.monitoring_port < 65536, "monitoring_port must be within 0..65535"),
            (
                not self.port or self.port != self.monitoring_port,
                f"monitoring_port is {self.monitoring_port}, as is port: choose another",
            ),
            (
                self.insecure or self.token_file is not None or is_loopback(self.host),
                f"host {self.host} can be reached from other machines, and without token_file anybody there may read "
                "prompts and caches: give the file of a secret that router and workers share, or say insecure",
            ),
            (self.slots >= 0, "slots must not be negative"),
            (not self.slots or self.memory == "auto", "slots and memory both size the cache: give one of them"),
            (self.max_sequences > 0, "max_sequences must be positive"),
            (self.chunk_tokens >= self.max_sequences, "chunk_tokens must be at least max_sequences"),
            (self.max_model_len >= 0, "max_model_len must not be negative"),
            (self.max_waiting >= 0, "max_waiting must not be negative"),
            (self.checkpoint_every >= 0, "checkpoint_every must not be negative"),
            (self.threads >= 0, "threads must not be negative"),
            (self.lease_seconds > 0, "lease_seconds must be positive"),
            (self.pull_timeout_seconds > 0, "pull_timeout_seconds must be positive"),
            (self.drain_seconds >= 0, "drain_seconds must not be negative"),
        ]
        for holds, message in checks:
            if not holds:
                raise ConfigError(message)
