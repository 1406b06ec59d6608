"""Builds pod templates: the parts that all pods of a V4Deployment share, merged with users' additions. Pure.

Pods meet the `restricted` Pod Security Standard. They set no user id, so that a platform such as OpenShift can assign
one; images have a numeric user. Users' additions never replace a value that is set here, except the annotations for
scrapers.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kubernetes.utils.quantity import parse_quantity

from v4_core.kubernetes import MONITORING_PORTS, TOKEN_FILE, Json
from v4_operator.manifests.names import child, labels, selector
from v4_operator.manifests.settings import Settings
from v4_operator.spec.v4deployment import PodOverrides, V4Deployment

TMP = "tmp"
TOKEN_VOLUME = "token"
TOKEN_DIR = "/etc/v4serve/token"
TOKEN_PATH = f"{TOKEN_DIR}/{TOKEN_FILE}"
GRACE_MARGIN_SECONDS = 30  # between the end of draining and SIGKILL

_STARTUP_PERIOD_SECONDS = 2


@dataclass(frozen=True)
class Container:
    """The parts in which containers differ."""

    name: str
    image: str
    args: Sequence[str]
    resources: Json
    ports: Mapping[str, int] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    secret_env: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # variable -> (Secret, entry)
    mounts: Sequence[Json] = ()
    probes: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Pod:
    """The parts in which pods differ."""

    role: str
    containers: Sequence[dict[str, Any]]
    volumes: Sequence[Json]
    service_account: str
    revision: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    api_token: bool = False  # whether the service account's token is mounted
    grace_seconds: int = GRACE_MARGIN_SECONDS
    more: Json = field(default_factory=dict)  # additional fields of the pod's spec


def present(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Drops empty fields. The API server drops them too, and a comparison would then always find a difference."""
    return {key: value for key, value in fields.items() if value not in ("", None, [], (), {})}


def requirements(given: Json, defaults: Mapping[str, str], devices: Mapping[str, int] | None = None) -> dict[str, Any]:
    """A container's resources: the given ones, default requests for what has no request or limit, and devices."""
    whole = {name: str(number) for name, number in (devices or {}).items() if number}
    limits = {**_amounts(given.get("limits")), **whole}
    open_defaults = {name: amount for name, amount in defaults.items() if name not in limits}
    requests = {**open_defaults, **_amounts(given.get("requests")), **whole}
    return present({**given, "requests": requests, "limits": limits})


def cores(resources: Json) -> int:
    """The number of threads for these resources: the CPU request, or else the CPU limit, rounded up."""
    amount = {**resources.get("limits", {}), **resources.get("requests", {})}["cpu"]
    return max(1, math.ceil(float(parse_quantity(amount))))


def http_probe(path: str, port: int, period: int, failures: int) -> dict[str, Any]:
    """A probe of a monitoring port. Its timeout is long, because a busy process answers late although it is healthy."""
    return {
        "httpGet": {"path": path, "port": port},
        "periodSeconds": period,
        "timeoutSeconds": 10,
        "failureThreshold": failures,
    }


def probes(port: int, start_seconds: int) -> dict[str, Any]:
    """Probes of a process that answers /health soon after its start and /ready once it can serve.

    The first answer may take `start_seconds`. Loading the model after that has no limit here: the rollout's progress
    deadline covers it, and killing the process would only restart the loading.
    """
    starts = math.ceil(start_seconds / _STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": http_probe("/health", port, _STARTUP_PERIOD_SECONDS, starts),
        "livenessProbe": http_probe("/health", port, 20, 6),
        "readinessProbe": http_probe("/ready", port, 2, 3),
    }


def log_arguments(settings: Settings) -> list[str]:
    """The flag for the log format; empty for the default, because older images exit if they do not know the flag."""
    return ["--log-format", settings.log_format] if settings.log_format != "human" else []


def container(settings: Settings, made: Container, overrides: PodOverrides) -> dict[str, Any]:
    """A container with the user's additions."""
    own_env: list[Json] = [{"name": name, "value": value} for name, value in made.env.items()]
    own_env += [
        {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": entry}}}
        for name, (secret, entry) in made.secret_env.items()
    ]
    mounts = [{"name": TMP, "mountPath": "/tmp"}, *made.mounts]
    return present(
        {
            "name": made.name,
            "image": made.image,
            "imagePullPolicy": settings.pull_policy,
            "args": list(made.args),
            "ports": [{"name": n, "containerPort": port, "protocol": "TCP"} for n, port in made.ports.items()],
            "env": [*own_env, *_others(overrides.env, own_env, "name")],
            "volumeMounts": [*mounts, *_others(overrides.volume_mounts, mounts, "mountPath")],
            "resources": made.resources,
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
            **made.probes,
        }
    )


def template(v4d: V4Deployment, settings: Settings, pod: Pod, overrides: PodOverrides) -> dict[str, Any]:
    """A pod template with the user's additions."""
    own = {**pod.labels, **labels(v4d, pod.role, pod.revision)}
    volumes: list[Json] = [{"name": TMP, "emptyDir": {}}, *pod.volumes]
    pull_secrets = dict.fromkeys((*settings.pull_secrets, *overrides.pull_secrets))
    spec = {
        "serviceAccountName": overrides.service_account or pod.service_account,
        "automountServiceAccountToken": pod.api_token,
        "enableServiceLinks": False,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "terminationGracePeriodSeconds": pod.grace_seconds,
        "imagePullSecrets": [{"name": name} for name in pull_secrets],
        "nodeSelector": dict(overrides.node_selector),
        "tolerations": list(overrides.tolerations),
        "affinity": dict(overrides.affinity),
        "topologySpreadConstraints": [
            {"labelSelector": {"matchLabels": selector(v4d, pod.role, pod.revision)}, **constraint}
            for constraint in overrides.topology_spread
        ],
        "priorityClassName": overrides.priority_class,
        "runtimeClassName": overrides.runtime_class,
        "containers": list(pod.containers),
        "volumes": [*volumes, *_others(overrides.volumes, volumes, "name")],
        **pod.more,
    }
    annotations = {**_scraping(pod.containers), **overrides.annotations, **pod.annotations}
    return {
        "metadata": present({"labels": {**overrides.labels, **own}, "annotations": annotations}),
        "spec": present(spec),
    }


def _scraping(containers: Iterable[Json]) -> dict[str, str]:
    """Annotations for scrapers that do not use PodMonitors. They name a single port; a pair's pod names prefill's."""
    ports = [port["containerPort"] for each in containers for port in each.get("ports", ())]
    monitoring = [port for port in ports if port in MONITORING_PORTS.values()]
    if not monitoring:
        return {}
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(monitoring[0]),
        "prometheus.io/path": "/metrics",
    }


def token_volume(v4d: V4Deployment) -> dict[str, Any]:
    """The volume with the component token, by which routers and workers authenticate to each other."""
    return {"name": TOKEN_VOLUME, "secret": {"secretName": child(v4d, "token")}}


def token_mount() -> dict[str, Any]:
    """The mount of the component token."""
    return {"name": TOKEN_VOLUME, "mountPath": TOKEN_DIR, "readOnly": True}


def _others(added: Iterable[Json], own: Iterable[Json], key: str) -> list[Json]:
    """Users' items, without those whose key is taken by one of the operator's items."""
    taken = {item[key] for item in own}
    return [item for item in added if item.get(key) not in taken]


def _amounts(amounts: Json | None) -> dict[str, str]:
    return {name: str(amount) for name, amount in (amounts or {}).items()}
