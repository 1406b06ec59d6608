"""The settings of an engine and of its scheduler. Knows no device and no checkpoint; needs no torch.

Each setting is written once, here: flags, settings files, docs/settings.md and the worker's configuration follow from
these fields (`v4_core.settings`).
"""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from v4_core.errors import ConfigError
from v4_core.formats import INDEX_FORMATS, STORAGE_FORMATS
from v4_core.geometry import SCRATCH_TAILS
from v4_core.settings import FLAT, INTERNAL, Setting, parse_bytes

_DTYPES = ("auto", "bf16", "fp32", "fp64")


@dataclass(frozen=True)
class ComputeOptions:
    """Where an engine computes, and in which formats. Raises ConfigError if a value is unknown."""

    device: Annotated[
        Literal["auto", "cpu", "cuda"],
        Setting("Device to compute on; prefill and decode workers: only cpu yet."),
    ] = "auto"
    dtype: Annotated[str, Setting("Type to compute in: bf16, fp32 or fp64; auto: the checkpoint's own type.")] = "auto"
    format: Annotated[str, Setting("Storage format of cache rows and entries; auto: the same as dtype.")] = "auto"
    index_format: Annotated[str, Setting("Storage format of indexer keys; auto: the same as format.")] = "auto"

    def __post_init__(self) -> None:
        for name, value, known in (
            ("dtype", self.dtype, _DTYPES),
            ("format", self.format, ("auto", *STORAGE_FORMATS)),
            ("index_format", self.index_format, ("auto", *INDEX_FORMATS)),
        ):
            if value not in known:
                raise ConfigError(f"{name} is {value!r}; choose one of {', '.join(known)}")


@dataclass(frozen=True)
class SchedulerConfig:
    """What one engine may hold and compute at once. Raises ConfigError if a value cannot be used."""

    max_sequences: Annotated[
        int, Setting("Sequences that may run, arrive or be leased at once; each has a live tail.")
    ] = 16
    chunk_tokens: Annotated[int, Setting("Tokens of one step.")] = 512
    max_waiting: Annotated[int, Setting("Requests that may wait for memory; further ones are refused.")] = 256
    max_model_len: Annotated[int, Setting("Tokens of prompt and output; 0: as many as model and memory allow.")] = 0
    checkpoint_every: Annotated[
        int, Setting("Blocks between checkpoints; 0: only at the ends of prompts and where prompts diverge.")
    ] = 0
    scratch_tails: Annotated[int, INTERNAL] = SCRATCH_TAILS  # states inside chunks that one step can capture

    def __post_init__(self) -> None:
        for name, least in (("max_sequences", 1), ("max_waiting", 0), ("checkpoint_every", 0), ("scratch_tails", 0)):
            if (value := getattr(self, name)) < least:
                raise ConfigError(f"{name} is {value}: give at least {least}")
        if self.chunk_tokens < self.max_sequences:
            raise ConfigError(
                f"chunk_tokens ({self.chunk_tokens}) must be at least max_sequences ({self.max_sequences}): a step "
                "computes one token of every decoding sequence before it computes any of a prompt"
            )
        if self.max_model_len < 0 or self.max_model_len == 1:
            raise ConfigError(
                f"max_model_len is {self.max_model_len}: give at least 2, for a token of prompt and one of output; or 0"
            )


@dataclass(frozen=True)
class EngineOptions:
    """The settings of an engine. "auto" and 0 mean: chosen by checkpoint and device. Raises ConfigError."""

    compute: Annotated[ComputeOptions, FLAT] = field(default_factory=ComputeOptions)
    memory: Annotated[
        int | str,
        Setting("Memory for the cache, as 80GB or 4GiB; auto: 1 GiB on a CPU, or more if a sequence needs it."),
    ] = "auto"
    slots: Annotated[int, Setting("Block slots of 256 tokens, instead of memory; 0: as many as memory holds.")] = 0
    scheduler: Annotated[SchedulerConfig, FLAT] = field(default_factory=SchedulerConfig)

    def __post_init__(self) -> None:
        _ = self.cache_bytes  # raises ConfigError if `memory` is not a size
        if self.slots < 0:
            raise ConfigError(f"slots is {self.slots}: give at least 0")
        if self.slots and self.memory != "auto":
            raise ConfigError("slots and memory both size the cache: give one of them")

    @property
    def cache_bytes(self) -> int:
        """Bytes of `memory`; 0 = auto. Raises ConfigError if `memory` is not a size."""
        if self.memory == "auto":
            return 0
        try:
            return parse_bytes(self.memory)
        except ConfigError as error:
            raise ConfigError(f"memory: {error}") from None
