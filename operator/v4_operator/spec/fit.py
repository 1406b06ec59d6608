"""Checks that a worker's memory holds the weights and one sequence of the requested context. Pure.

The message of each problem names the smallest setting that would be enough.
"""

import math
from collections.abc import Iterator

from v4_core.config import ModelConfig
from v4_core.geometry import CacheGeometry
from v4_operator.spec.accelerators import CPU
from v4_operator.spec.capacity import (
    cache_bytes,
    device_memory,
    geometry,
    model_config,
    slots,
    tails_bytes,
    weights_of_device,
)
from v4_operator.spec.problem import DOES_NOT_FIT, Problem
from v4_operator.spec.v4deployment import Parallel, Pool, Spec

_MOST_DEVICES = 128
_MIB = 1 << 20


def does_not_fit(spec: Spec) -> Iterator[Problem]:
    """Yields a problem for each pool and each kind of memory that is too small; none if the profile is unknown."""
    config, layout = model_config(spec), geometry(spec)
    if config is None or layout is None:
        return
    if spec.cache.slots:
        yield from _few_slots(spec, layout)
    for name, pool in (("prefill", spec.prefill), ("decode", spec.decode)):
        if pool.accelerator.type == CPU:
            yield from _container(spec, name, pool, layout)
        else:
            yield from _cache_share(spec, name, pool, layout)
            yield from _weights(spec, name, pool, config, layout)


def _context(spec: Spec) -> int:
    return spec.model.context_length or 2  # the engine's minimum: one prompt token and one output token


def _sequence_slots(spec: Spec, layout: CacheGeometry) -> int:
    """The minimum number of slots with which the engine can serve one sequence."""
    return layout.least_slots(_context(spec))


def _least_cache(spec: Spec, layout: CacheGeometry) -> int:
    return _sequence_slots(spec, layout) * layout.slab_bytes + tails_bytes(spec, layout)


def _cache(spec: Spec, pool: Pool, layout: CacheGeometry) -> int:
    """Bytes of one cache."""
    if spec.cache.slots:
        return spec.cache.slots * layout.slab_bytes + tails_bytes(spec, layout)
    return cache_bytes(spec, pool)


def _few_slots(spec: Spec, layout: CacheGeometry) -> Iterator[Problem]:
    least = _sequence_slots(spec, layout)
    if spec.cache.slots < least:
        message = (
            f"cache.slots is {spec.cache.slots}, but {_sequence(spec)} needs {least}, of which "
            f"{layout.checkpoint_slots} are for a checkpoint; raise it"
        )
        yield Problem(DOES_NOT_FIT, message, "cache.slots")


def _container(spec: Spec, name: str, pool: Pool, layout: CacheGeometry) -> Iterator[Problem]:
    memory, percent = device_memory(pool), spec.cache.memory_percent
    weights = weights_of_device(spec, pool.parallel.tensor, pool.parallel.data)
    if spec.cache.slots:
        least, cache = weights + _cache(spec, pool, layout), f"{spec.cache.slots} cache slots"
    else:
        least = max(-(-_least_cache(spec, layout) * 100 // percent), -(-weights * 100 // (100 - percent)))
        cache = f"{_sequence(spec)} in {percent} % of it"
    if memory < least:
        message = (
            f"{name}: a container with {_size(memory)} of memory cannot hold the weights of {spec.model.profile} "
            f"({_size(weights)}) and {cache}, beside {spec.cache.max_sequences} live tails; set "
            f"{name}.resources.requests.memory to at least {-(-least // _MIB)}Mi{_or_shorter(spec)}"
        )
        yield Problem(DOES_NOT_FIT, message, f"{name}.resources.requests.memory")


def _cache_share(spec: Spec, name: str, pool: Pool, layout: CacheGeometry) -> Iterator[Problem]:
    """The cache's share of a device. More devices do not help, because each device holds whole sequences."""
    if spec.cache.slots or slots(spec, pool, layout) >= _sequence_slots(spec, layout):
        return
    message = (
        f"{name}: cache.memoryPercent {spec.cache.memory_percent} of a {pool.accelerator.type} is "
        f"{_size(cache_bytes(spec, pool))}, but {_sequence(spec)} beside {spec.cache.max_sequences} live tails takes "
        f"{_size(_least_cache(spec, layout))} on each device; raise cache.memoryPercent{_or_shorter(spec)}"
    )
    yield Problem(DOES_NOT_FIT, message, "cache.memoryPercent")


def _weights(spec: Spec, name: str, pool: Pool, config: ModelConfig, layout: CacheGeometry) -> Iterator[Problem]:
    cache, memory = _cache(spec, pool, layout), device_memory(pool)
    weights = weights_of_device(spec, pool.parallel.tensor, pool.parallel.data)
    if weights + cache <= memory:
        return
    kind, least = pool.accelerator.type, _least_devices(spec, config, memory - cache)
    if least is None:
        enough = f"no number of them up to {_MOST_DEVICES} is enough"
    else:
        enough = f"{least.tensor * least.data} of them are enough, with tensor {least.tensor} and data {least.data}"
    message = (
        f"{name}: {pool.accelerator.count} {kind} with tensor {pool.parallel.tensor} and data {pool.parallel.data} "
        f"cannot hold the weights of {spec.model.profile} ({_size(weights)} per device) beside the cache "
        f"({_size(cache)} of {_size(memory)}); {enough}; or give the cache less memory"
    )
    yield Problem(DOES_NOT_FIT, message, f"{name}.accelerator.count")


def _least_devices(spec: Spec, config: ModelConfig, room: int) -> Parallel | None:
    """The smallest parallel sizes that divide the experts evenly and need at most `room` bytes of weights per device.

    Returns None if there are none up to 128 devices.
    """
    for count in range(1, _MOST_DEVICES + 1):
        tensor = math.gcd(count, config.o_groups)
        fits = weights_of_device(spec, tensor, count // tensor) <= room
        if fits and config.n_routed_experts % count == 0:
            return Parallel(tensor, count // tensor)
    return None


def _sequence(spec: Spec) -> str:
    return f"one sequence of {spec.model.context_length} tokens" if spec.model.context_length else "any sequence"


def _or_shorter(spec: Spec) -> str:
    context = "model.contextLength or " if spec.model.context_length else ""
    return f", or lower {context}cache.maxSequences"


def _size(size: int) -> str:
    return f"{size / _MIB:.0f} MiB" if size < 1 << 30 else f"{size / (1 << 30):.1f} GiB"
