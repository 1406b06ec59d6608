"""Whether a worker's memory holds the model's weights plus one sequence of the asked context, and what would. Pure."""

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
    """One problem for each pool and each lack of memory; none where the profile is unknown."""
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
    return spec.model.context_length or 2  # the engine's least: one token in, one out


def _sequence_slots(spec: Spec, layout: CacheGeometry) -> int:
    """Least slots with which the engine serves a sequence."""
    return layout.least_slots(_context(spec))


def _least_cache(spec: Spec, layout: CacheGeometry) -> int:
    return _sequence_slots(spec, layout) * layout.slab_bytes + tails_bytes(spec, layout)


def _cache(spec: Spec, pool: Pool, layout: CacheGeometry) -> int:
    """Bytes that one cache takes."""
    if spec.cache.slots:
        return spec.cache.slots * layout.slab_bytes + tails_bytes(spec, layout)
    return cache_bytes(spec, pool)


def _few_slots(spec: Spec, layout: CacheGeometry) -> Iterator[Problem]:
    least = _sequence_slots(spec, layout)
    if spec.cache.slots < least:
        message = (
            f"cache.slots is {spec.cache.slots}, but {_sequence(spec)} takes {least}, of which "
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
    """More devices do not help here: each holds whole sequences."""
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
        enough = f"no number of them up to {_MOST_DEVICES} would do"
    else:
        enough = f"{least.tensor * least.data} of them would do, with tensor {least.tensor} and data {least.data}"
    message = (
        f"{name}: {pool.accelerator.count} {kind} with tensor {pool.parallel.tensor} and data {pool.parallel.data} "
        f"cannot hold the weights of {spec.model.profile}, {_size(weights)} on each, beside the cache, {_size(cache)} "
        f"of its {_size(memory)}; {enough}; or give the cache less"
    )
    yield Problem(DOES_NOT_FIT, message, f"{name}.accelerator.count")


def _least_devices(spec: Spec, config: ModelConfig, room: int) -> Parallel | None:
    """Fewest devices, among which experts can be shared out, whose weights fit into `room` bytes each."""
    for count in range(1, _MOST_DEVICES + 1):
        tensor = math.gcd(count, config.o_groups)
        fits = weights_of_device(spec, tensor, count // tensor) <= room
        if fits and config.n_routed_experts % count == 0:
            return Parallel(tensor, count // tensor)
    return None


def _sequence(spec: Spec) -> str:
    return f"one sequence of {spec.model.context_length} tokens" if spec.model.context_length else "any sequence at all"


def _or_shorter(spec: Spec) -> str:
    context = "model.contextLength or " if spec.model.context_length else ""
    return f", or lower {context}cache.maxSequences"


def _size(size: int) -> str:
    return f"{size / _MIB:.0f} MiB" if size < 1 << 30 else f"{size / (1 << 30):.1f} GiB"
