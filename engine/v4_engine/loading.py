"""From a checkpoint folder to an engine: chooses types, formats and sizes, reads weights, allocates the cache."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from v4_core.blocks import BLOCK_TOKENS
from v4_core.config import ModelConfig
from v4_core.errors import ConfigError
from v4_core.fingerprint import TensorDigest, fingerprint
from v4_core.geometry import CacheGeometry
from v4_core.shards import weight_files
from v4_engine.engine import Engine
from v4_engine.options import EngineOptions, SchedulerConfig
from v4_engine.params import build
from v4_engine.stores import CacheMemory
from v4_engine.weights import hashed, read

_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32, "fp64": torch.float64}
_CPU_CACHE_BYTES = 1 << 30  # the default on a CPU, unless one sequence needs more
_LEAST_TOKENS = 2  # one of prompt and one of output
_GPU_SHARE = 0.85  # of the memory that is free after the weights are loaded; the rest is workspace

# Every choice of this engine that affects stored values. Caches are exchanged only if all are equal (reference 10).
CHOICES = {"hadamard": "off", "activation_round_trip": "off", "rounding": "when made"}


@dataclass(frozen=True)
class Loaded:
    """An engine and the fingerprint by which workers check that they can exchange caches."""

    engine: Engine
    fingerprint: str


def load_engine(path: Path, options: EngineOptions, progress: Callable[[int, int], None] | None = None) -> Loaded:
    """Load a checkpoint into an engine. `progress(done, total)` counts bytes of weights.

    Raises ConfigError if the checkpoint or the options cannot be used.
    """
    config = ModelConfig.from_path(path)
    compute = options.compute
    device = _device(compute.device)
    dtype = config.dtype if compute.dtype == "auto" else compute.dtype
    storage = dtype if compute.format == "auto" else compute.format
    index = storage if compute.index_format == "auto" else compute.index_format
    geometry = CacheGeometry(config, storage, index)
    for name in (storage, index):  # checked before the weights are read, which may take minutes
        if name not in _DTYPES:
            raise ConfigError(f"{name} storage is not supported yet: use bf16, fp32 or fp64")
    digests: dict[str, TensorDigest] = {}
    tensors = hashed(read(config, weight_files(path), progress), digests)
    params = build(config, tensors, _DTYPES[dtype], device)
    memory, scheduling = _allocate(geometry, options, device)
    engine = Engine(config, params, memory, scheduling)
    return Loaded(engine, fingerprint(config, geometry, CHOICES | {"compute": dtype}, digests))


def _device(name: str) -> torch.device:
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("device is cuda, but torch sees no GPU: use --device cpu, or install a CUDA build of torch")
    return torch.device("cuda" if name != "cpu" and torch.cuda.is_available() else "cpu")


def _allocate(g: CacheGeometry, o: EngineOptions, device: torch.device) -> tuple[CacheMemory, SchedulerConfig]:
    scheduler, sequences = o.scheduler, o.scheduler.max_sequences
    least = g.least_slots(scheduler.max_model_len or _LEAST_TOKENS) * g.slab_bytes + g.tails_bytes(sequences)
    size = o.cache_bytes or _default_bytes(device, least)
    slots = o.slots or g.slots_within(size, sequences)
    scheduler = replace(scheduler, max_model_len=_max_model_len(g, o, slots, size))
    return _memory(g, slots, sequences + scheduler.scratch_tails, device), scheduler


def _max_model_len(g: CacheGeometry, o: EngineOptions, slots: int, size: int) -> int:
    """Return the max_model_len of the options, or what the slots hold.

    Raises ConfigError, which names the memory that is needed, if the slots hold less.
    """
    room = (slots - g.least_slots(0)) * BLOCK_TOKENS
    length = o.scheduler.max_model_len or min(g.config.max_position, room)
    if length > g.config.max_position:
        raise ConfigError(f"max_model_len is {length}, but the model supports at most {g.config.max_position} tokens")
    if _LEAST_TOKENS <= length <= room:
        return length
    length = max(length, _LEAST_TOKENS)
    raise ConfigError(_too_few_slots(g, slots, length) if o.slots else _too_few_bytes(g, o, size, length))


def _too_few_slots(g: CacheGeometry, slots: int, length: int) -> str:
    shorter = ", or lower max_model_len" if length > _LEAST_TOKENS else ""
    return (
        f"{slots} slots of {g.slab_bytes} B cannot hold one sequence of {length} tokens: that takes "
        f"{g.least_slots(length)}, of which {g.checkpoint_slots} are for a checkpoint; raise slots, or give memory "
        f"instead{shorter}"
    )


def _too_few_bytes(g: CacheGeometry, o: EngineOptions, size: int, length: int) -> str:
    blocks, checkpoint = g.least_slots(length) * g.slab_bytes, g.checkpoint_slots * g.slab_bytes
    tails = g.tails_bytes(o.scheduler.max_sequences)
    shorter = " or max_model_len" if length > _LEAST_TOKENS else ""
    return (
        f"{size} B of cache memory cannot hold {o.scheduler.max_sequences} tails and one sequence of {length} tokens: "
        f"that takes {blocks + tails} B, of which {tails} are for tails and {checkpoint} for a checkpoint; raise "
        f"memory, or lower max_sequences{shorter}"
    )


def _default_bytes(device: torch.device, least: int) -> int:
    """Return the bytes of cache to use by default, on a CPU at least those of one sequence."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0] * _GPU_SHARE)
    return max(_CPU_CACHE_BYTES, least)


def _memory(g: CacheGeometry, slots: int, tails: int, device: torch.device) -> CacheMemory:
    size = slots * g.slab_bytes + tails * g.tail_bytes
    try:
        if size > sys.maxsize:
            raise RuntimeError("more bytes than an address can name")
        return CacheMemory(g, slots, tails, device)
    except RuntimeError as error:  # torch has no specific error for a failed allocation
        raise ConfigError(f"this machine cannot allocate {size} B of cache memory: configure less") from error
