"""Deployments of workers: one per role and revision, or with placement shared one per revision. Pure.

All settings of a worker are command-line arguments, so a changed setting changes the pod template.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from v4_core.kubernetes import MONITORING_PORTS, ROLE_ALIAS_LABEL, ROLE_LABEL, WORKER_PORTS, Json, WorkerRole
from v4_core.settings import keys
from v4_operator.manifests.deployments import chosen_image, deployment
from v4_operator.manifests.model_source import model_source
from v4_operator.manifests.names import child, selector
from v4_operator.manifests.pods import (
    GRACE_MARGIN_SECONDS,
    TOKEN_PATH,
    Container,
    Pod,
    container,
    cores,
    log_arguments,
    probes,
    requirements,
    template,
    token_mount,
    token_volume,
)
from v4_operator.manifests.settings import Settings
from v4_operator.observed.objects import label
from v4_operator.spec.accelerators import ACCELERATORS
from v4_operator.spec.capacity import WORKER_REQUESTS, cache_bytes, pool_of
from v4_operator.spec.size import Size
from v4_operator.spec.v4deployment import PodOverrides, Pool, Spec, V4Deployment
from v4_worker.config import WorkerConfig

# The containers of a worker pod, by the pod's role.
CONTAINERS: Mapping[str, tuple[WorkerRole, ...]] = {
    "prefill": ("prefill",),
    "decode": ("decode",),
    "pair": ("prefill", "decode"),
}
_FLAGS = {key.name: key.flag for key in keys(WorkerConfig)}
_ROLE_ALIASES = {"prefill": "prefill", "decode": "decode", "pair": "both"}
_START_SECONDS = 300  # until the process answers /health: imports on a busy node
# From a pod's readiness to the end of the one that it replaces: routers need it to find and to prove the new one.
_PROOF_SECONDS = 10


@dataclass(frozen=True)
class Workers:
    """What the workers of the current revision have in common."""

    v4d: V4Deployment
    settings: Settings
    image: str
    revision: str

    def deployments(self, size: Size) -> list[dict[str, Any]]:
        """The revision's Deployments for `size` workers."""
        return [self.deployment(role, pods_for(role, size)) for role in pod_roles(self.v4d.spec)]

    def deployment(self, role: str, replicas: int) -> dict[str, Any]:
        """The Deployment of pods with this role: prefill, decode or pair."""
        v4d, rollout = self.v4d, self.v4d.spec.rollout
        one_less = {"maxSurge": 0, "maxUnavailable": 1}
        one_more = {"maxSurge": 1, "maxUnavailable": 0}
        spec = {
            "replicas": replicas,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": rollout.progress_deadline_seconds,
            "minReadySeconds": min(_PROOF_SECONDS, rollout.progress_deadline_seconds - 1),
            "selector": {"matchLabels": selector(v4d, role, self.revision)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": one_less if rollout.strategy == "Replace" else one_more,
            },
            "template": self._template(role),
        }
        return deployment(v4d, self.settings, child(v4d, role, self.revision), role, spec, self.revision)

    def _template(self, role: str) -> dict[str, Any]:
        spec, source = self.v4d.spec, model_source(self.v4d.spec.model)
        pod = Pod(
            role=role,
            containers=[self._container(worker) for worker in CONTAINERS[role]],
            volumes=[token_volume(self.v4d), *([source.volume] if source.volume else [])],
            service_account=child(self.v4d, "worker"),
            revision=self.revision,
            labels={ROLE_ALIAS_LABEL: _ROLE_ALIASES[role]},
            grace_seconds=spec.rollout.drain_seconds + GRACE_MARGIN_SECONDS,
        )
        return template(self.v4d, self.settings, pod, overrides(spec, role))

    def _container(self, role: WorkerRole) -> dict[str, Any]:
        pool, source = pool_of(self.v4d.spec, role), model_source(self.v4d.spec.model)
        resources = requirements(pool.resources, WORKER_REQUESTS, devices(pool))
        threads = cores(resources)
        monitoring = MONITORING_PORTS[role]
        made = Container(
            name=role,
            image=self.image,
            args=[*arguments(self.v4d.spec, role, source.argument, threads), *log_arguments(self.settings)],
            resources=resources,
            ports={role: WORKER_PORTS[role], f"monitor-{role}": monitoring},
            env={"HOME": "/tmp", "OMP_NUM_THREADS": str(threads)},
            mounts=[token_mount(), *([source.mount] if source.mount else [])],
            probes=probes(monitoring, _START_SECONDS),
        )
        return container(self.settings, made, pool.pod)


def image_of(live: Json) -> str:
    """The image that the operator chose for the workers of a live Deployment."""
    return chosen_image(live, CONTAINERS[label(live, ROLE_LABEL)][0])


def pod_roles(spec: Spec) -> tuple[str, ...]:
    """Roles of the pods of one revision."""
    return ("pair",) if spec.placement == "shared" else ("prefill", "decode")


def pods_for(role: str, size: Size) -> int:
    """The number of pods of a role that hold `size` workers."""
    return {"prefill": size.prefill, "decode": size.decode, "pair": size.pairs}[role]


def overrides(spec: Spec, role: str) -> PodOverrides:
    """Users' additions to pods of a role. A pair's pod has prefill's additions and also the volumes of decode."""
    if role == "decode":
        return spec.decode.pod
    if role == "prefill":
        return spec.prefill.pod
    names = {volume.get("name") for volume in spec.prefill.pod.volumes}
    more = [volume for volume in spec.decode.pod.volumes if volume.get("name") not in names]
    return replace(spec.prefill.pod, volumes=[*spec.prefill.pod.volumes, *more])


def devices(pool: Pool) -> dict[str, int]:
    """The accelerators of one worker as extended resources."""
    resource = ACCELERATORS[pool.accelerator.type].resource
    return {resource: pool.accelerator.count or pool.parallel.tensor * pool.parallel.data} if resource else {}


def arguments(spec: Spec, role: WorkerRole, model: str, threads: int) -> list[str]:
    """The command line of a worker. A value of 0 means that the worker chooses, as in the spec."""
    cache, pool = spec.cache, pool_of(spec, role)
    memory = ("slots", cache.slots) if cache.slots else ("memory", cache_bytes(spec, pool))
    settings: dict[str, object] = {
        "model": model,
        "host": "0.0.0.0",
        "port": WORKER_PORTS[role],
        "monitoring_port": MONITORING_PORTS[role],
        "token_file": TOKEN_PATH,
        "format": cache.format,
        "index_format": cache.index_format,
        memory[0]: memory[1],
        "max_sequences": cache.max_sequences,
        "max_model_len": spec.model.context_length,
        "checkpoint_every": cache.checkpoint_every,
        "lease_seconds": spec.transfer.lease_seconds,
        "pull_timeout_seconds": spec.transfer.pull_timeout_seconds,
        "drain_seconds": spec.rollout.drain_seconds,
        "threads": threads,
    }
    return [role, *(str(part) for name, value in settings.items() for part in (_FLAGS[name], value))]
