"""Validates a V4Deployment as a whole: rules that span several fields, and limits of server and engine. Pure.

Repeats every validation rule of the CRD, because API servers before 1.25 do not evaluate them. Adds the rules that need
more than the object itself: sizes of weights and caches, and the capabilities of the API server and of the engine.
"""

import re
from collections.abc import Callable, Iterator
from itertools import chain

from v4_core.profiles import PROFILES
from v4_operator.spec.accelerators import ACCELERATORS, CPU
from v4_operator.spec.fit import does_not_fit
from v4_operator.spec.name_checks import name_problems
from v4_operator.spec.pod_checks import pod_problems
from v4_operator.spec.problem import ENGINE_LACKS, INVALID_NAME, INVALID_SPEC, SERVER_LACKS, Problem
from v4_operator.spec.type_checks import type_problems
from v4_operator.spec.v4deployment import Pool, Spec, V4Deployment

Version = tuple[int, int]

_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_NAME_LENGTH = 40  # leaves room for the suffixes of children's names
_IMAGE_VOLUMES = (1, 33)  # the first server version that can mount a subfolder of an image volume


def check(v4d: V4Deployment, server_version: Version) -> list[Problem]:
    """Returns all problems; an empty list if the V4Deployment can run. `server_version` is (major, minor)."""
    spec = v4d.spec
    checks: tuple[Callable[[Spec], Iterator[Problem]], ...] = (_model, _cache, _devices, _sizes, _placement, _others)
    found = [*_name(v4d), *name_problems(spec), *chain.from_iterable(check(spec) for check in checks)]
    found += [*type_problems(spec)] or pod_problems(spec, server_version)
    fit = [] if found else does_not_fit(spec)  # sizes derived from an invalid spec would mislead
    return [*found, *_server(spec, server_version), *_engine(spec), *fit]


def _pools(spec: Spec) -> tuple[tuple[str, Pool], tuple[str, Pool]]:
    return ("prefill", spec.prefill), ("decode", spec.decode)


def _invalid(field: str, message: str) -> Problem:
    return Problem(INVALID_SPEC, message, field)


def _name(v4d: V4Deployment) -> Iterator[Problem]:
    if len(v4d.name) > _NAME_LENGTH:
        message = (
            f"metadata.name has {len(v4d.name)} characters, but names of pods and labels are derived from it; choose "
            f"a name of at most {_NAME_LENGTH} characters"
        )
        yield Problem(INVALID_NAME, message, "metadata.name")
    if not _NAME.fullmatch(v4d.name):
        message = (
            f"metadata.name is {v4d.name!r}, which is not a valid name of a Service; use a-z, 0-9 and '-', starting "
            "with a letter and ending with a letter or digit"
        )
        yield Problem(INVALID_NAME, message, "metadata.name")


def _model(spec: Spec) -> Iterator[Problem]:
    model = spec.model
    if model.source == "demo" and model.profile != "demo":
        message = f"model.profile is {model.profile}, but the source is model.demo; set it to demo or leave it out"
        yield _invalid("model.profile", message)
    longest = PROFILES[model.profile].max_position if model.profile else 1 << 20
    if model.context_length > longest:
        message = (
            f"model.contextLength is {model.context_length}, more than the model's maximum of {longest} tokens; lower "
            "it or leave it out"
        )
        yield _invalid("model.contextLength", message)


def _cache(spec: Spec) -> Iterator[Problem]:
    cache = spec.cache
    if cache.slots and not spec.model.profile:
        message = (
            "cache.slots needs model.profile, because the memory of a slot depends on it; set the profile, or use "
            "cache.memoryPercent"
        )
        yield _invalid("cache.slots", message)
    for name, pool in _pools(spec):
        kind = pool.accelerator.type
        for field, storage in (("format", cache.format), ("indexFormat", cache.index_format)):
            if storage != "auto" and storage not in ACCELERATORS[kind].formats:
                usable = sorted(ACCELERATORS[kind].formats)
                message = (
                    f"cache.{field} is {storage}, in which {name}.accelerator.type {kind} cannot compute; use one of "
                    f"{', '.join(usable)}, or another type"
                )
                yield _invalid(f"cache.{field}", message)


def _devices(spec: Spec) -> Iterator[Problem]:
    for name, pool in _pools(spec):
        kind, count = pool.accelerator.type, pool.accelerator.count
        if (kind == CPU) != (count == 0):
            message = (
                f"{name}.accelerator.count is {count} with type {kind}; it must be 0 for cpu and at least 1 for every "
                "other type"
            )
            yield _invalid(f"{name}.accelerator.count", message)
        product = pool.parallel.tensor * pool.parallel.data
        if count and product != count:
            message = (
                f"{name}.parallel has {pool.parallel.tensor} x {pool.parallel.data} = {product} places for "
                f"{name}.accelerator.count {count} devices; make the product of tensor and data equal to count"
            )
            yield _invalid(f"{name}.parallel", message)


def _sizes(spec: Spec) -> Iterator[Problem]:
    """Parallel sizes must divide the model's heads, output groups and experts."""
    if not spec.model.profile:
        return
    config = PROFILES[spec.model.profile]
    for name, pool in _pools(spec):
        tensor, devices = pool.parallel.tensor, pool.parallel.tensor * pool.parallel.data
        if config.num_heads % tensor or config.o_groups % tensor:
            message = (
                f"{name}.parallel.tensor is {tensor}, which does not divide the {config.o_groups} groups of attention "
                f"heads of {spec.model.profile}; use a divisor of {config.o_groups}"
            )
            yield _invalid(f"{name}.parallel.tensor", message)
        if config.n_routed_experts % devices:
            message = (
                f"{name}.parallel spreads over {devices} devices, which do not divide the {config.n_routed_experts} "
                f"experts of {spec.model.profile}; make tensor times data a divisor of {config.n_routed_experts}"
            )
            yield _invalid(f"{name}.parallel", message)


def _placement(spec: Spec) -> Iterator[Problem]:
    transport, kinds = spec.transfer.transport, [pool.accelerator.type for _, pool in _pools(spec)]
    if spec.placement == "shared":
        if spec.prefill.replicas != spec.decode.replicas:
            message = (
                "placement shared puts one prefill and one decode worker into each pod, but prefill.replicas is "
                f"{spec.prefill.replicas} and decode.replicas {spec.decode.replicas}; make them equal, or use separate"
            )
            yield _invalid("placement", message)
        if kinds[0] != kinds[1]:
            message = (
                "placement shared puts both workers on one node, but prefill.accelerator.type is "
                f"{kinds[0]} and decode.accelerator.type {kinds[1]}; make them equal, or use separate"
            )
            yield _invalid("placement", message)
    elif transport in ("shared-memory", "nvlink"):
        message = (
            f"transfer.transport {transport} works only within a pod; set placement to shared, or transport to auto"
        )
        yield _invalid("transfer.transport", message)
    if transport == "nvlink" and any(ACCELERATORS[kind].link != "nvlink" for kind in kinds):
        without = next(kind for kind in kinds if ACCELERATORS[kind].link != "nvlink")
        message = f"transfer.transport is nvlink, but {without} has no NVLink; set it to auto"
        yield _invalid("transfer.transport", message)


def _others(spec: Spec) -> Iterator[Problem]:
    rollout = spec.rollout
    if rollout.strategy == "Replace" and rollout.drain_seconds >= rollout.progress_deadline_seconds:
        message = (
            f"rollout.progressDeadlineSeconds is {rollout.progress_deadline_seconds}, but with strategy Replace a new "
            f"worker waits up to rollout.drainSeconds {rollout.drain_seconds} for its place; raise the one or lower "
            "the other"
        )
        yield _invalid("rollout.progressDeadlineSeconds", message)
    if spec.router.auth == "none" and spec.router.api_keys_secret:
        message = "router.apiKeysSecret has no effect with router.auth none; remove it, or set router.auth to keys"
        yield _invalid("router.apiKeysSecret", message)


def _server(spec: Spec, version: Version) -> Iterator[Problem]:
    if spec.model.source == "image" and version < _IMAGE_VOLUMES:
        message = (
            f"model.image needs Kubernetes {_IMAGE_VOLUMES[0]}.{_IMAGE_VOLUMES[1]}, and this API server is "
            f"{version[0]}.{version[1]}; use model.pvc or model.huggingFace"
        )
        yield Problem(SERVER_LACKS, message, "model.image")


def _engine(spec: Spec) -> Iterator[Problem]:
    """Values that the API accepts but the engine does not support yet."""

    def lacks(field: str, limit: str, instead: str) -> Problem:
        return Problem(ENGINE_LACKS, f"{field}: this version of v4serve {limit}; {instead}", field)

    if spec.model.profile and PROFILES[spec.model.profile].quantised:
        limit = f"cannot load the fp8 and fp4 weights of {spec.model.profile}"
        yield lacks("model.profile", limit, "serve a bf16 or fp32 checkpoint, and leave the profile out")
    for field, storage in (("cache.format", spec.cache.format), ("cache.indexFormat", spec.cache.index_format)):
        if storage in ("fp8", "fp4"):
            yield lacks(field, f"does not support {storage} storage", "use auto, bf16 or fp32")
    if spec.transfer.transport not in ("auto", "grpc"):
        yield lacks("transfer.transport", f"does not support the transport {spec.transfer.transport}", "use auto")
    for name, pool in _pools(spec):
        if pool.accelerator.type != CPU:
            limit = f"computes only on CPUs, not on {pool.accelerator.type}"
            yield lacks(f"{name}.accelerator", limit, "leave the accelerator out")
        if pool.parallel.tensor * pool.parallel.data > 1:
            yield lacks(f"{name}.parallel", "runs each worker on a single device", "leave the parallel sizes out")
