"""Computes what a worker's memory holds: weights and cache, and from them block slots and tokens. Pure.

Takes every size from `v4_core.geometry` and counts as the engine does at its start, so that planned and reported slots
can be compared. Tensor-parallel devices hold replicas of one cache, because V4 has a single key-value head. Each
data-parallel group of devices has a cache of its own.
"""

from dataclasses import dataclass

from v4_core.blocks import BLOCK_TOKENS
from v4_core.config import ModelConfig
from v4_core.errors import GeometryError
from v4_core.geometry import CacheGeometry
from v4_core.kubernetes import WorkerRole
from v4_core.profiles import PROFILES
from v4_core.weight_sizes import weight_bytes
from v4_operator.spec.accelerators import ACCELERATORS, CPU
from v4_operator.spec.fields import quantity
from v4_operator.spec.v4deployment import Pool, Spec, V4Deployment

WORKER_REQUESTS = {"cpu": "500m", "memory": "2Gi"}  # used if neither a request nor a limit is given


@dataclass(frozen=True)
class Capacity:
    """The capacity of one worker's cache."""

    slots: int  # block slots
    tokens: int


def device_memory(pool: Pool) -> int:
    """Bytes of memory per device; on a CPU, the memory that the container requests."""
    accelerator = pool.accelerator
    if accelerator.type != CPU:
        return accelerator.memory_bytes or ACCELERATORS[accelerator.type].memory_bytes
    given = {**WORKER_REQUESTS, **(pool.resources.get("limits") or {}), **(pool.resources.get("requests") or {})}
    return int(quantity(given["memory"]) or 0)


def model_config(spec: Spec) -> ModelConfig | None:
    """The model's configuration; None if its profile is unknown."""
    return PROFILES[spec.model.profile] if spec.model.profile else None


def geometry(spec: Spec) -> CacheGeometry | None:
    """The cache's geometry; None if the profile is unknown or the model cannot be stored in these formats."""
    config = model_config(spec)
    if config is None:
        return None
    storage = config.dtype if spec.cache.format == "auto" else spec.cache.format
    try:
        return CacheGeometry(config, storage, storage if spec.cache.index_format == "auto" else spec.cache.index_format)
    except GeometryError:
        return None


def cache_bytes(spec: Spec, pool: Pool) -> int:
    """Bytes of one cache by cache.memoryPercent, which the worker gets as `--memory`."""
    return device_memory(pool) * spec.cache.memory_percent // 100


def tails_bytes(spec: Spec, layout: CacheGeometry) -> int:
    """Bytes of a cache that hold live tails instead of block slots."""
    return layout.tails_bytes(spec.cache.max_sequences)


def slots(spec: Spec, pool: Pool, layout: CacheGeometry) -> int:
    """Block slots of one cache; negative if not even the tails fit."""
    return spec.cache.slots or layout.slots_within(cache_bytes(spec, pool), spec.cache.max_sequences)


def weights_of_device(spec: Spec, tensor: int, data: int) -> int:
    """Bytes of weights on one device; 0 if the profile is unknown."""
    config = model_config(spec)
    if config is None:
        return 0
    weights = weight_bytes(config)
    return -(-weights.experts // (tensor * data)) - (-weights.rest // tensor)


def planned(v4d: V4Deployment, role: WorkerRole) -> Capacity | None:
    """Capacity of one worker; None if slots cannot be known before a worker reports them."""
    pool, layout = pool_of(v4d.spec, role), geometry(v4d.spec)
    if layout is None and not v4d.spec.cache.slots:
        return None
    count = v4d.spec.cache.slots if layout is None else slots(v4d.spec, pool, layout)
    count = max(0, count) * pool.parallel.data
    return Capacity(count, count * BLOCK_TOKENS)


def pool_of(spec: Spec, role: WorkerRole) -> Pool:
    """The pool of a role."""
    return spec.prefill if role == "prefill" else spec.decode
