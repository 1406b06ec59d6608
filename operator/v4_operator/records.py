"""What goes into a plan beside the spec, and what comes out of it. Pure records; manifests are plain JSON mappings."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from v4_core.logs import LogFormat
from v4_operator.needs import Need
from v4_operator.problem import Problem
from v4_operator.spec import Json


@dataclass(frozen=True)
class Settings:
    """What the operator was started with, and what the API server is."""

    worker_image: str
    router_image: str
    pull_policy: str = "IfNotPresent"
    pull_secrets: tuple[str, ...] = ()
    common_labels: Mapping[str, str] = field(default_factory=dict)  # on every child
    operator_namespace: str = ""  # whose pods may read a router's monitoring port; empty = operator outside the cluster
    operator_labels: Mapping[str, str] = field(default_factory=dict)  # of the operator's pods
    scrape_from: Sequence[Json] = ()  # NetworkPolicyPeers that may read monitoring ports where a spec names none
    log_format: LogFormat = "human"  # of workers and routers
    server_version: tuple[int, int] = (1, 20)  # major, minor
    kinds: frozenset[tuple[str, str]] = frozenset()  # (apiVersion, kind) that the server has


@dataclass(frozen=True)
class Observed:
    """What exists, as the operator's caches and the routers say."""

    now: datetime
    children: Sequence[Json] = ()  # every live object with this V4Deployment's label, pods too
    fleets: Sequence[Json] = ()  # what each reachable router answers at /fleet
    status: Json = field(default_factory=dict)  # of the V4Deployment, as it was written last
    absent: frozenset[Need] = frozenset()  # what pods that do not start need and the API server does not have
    unread: Problem | None = None  # why its spec cannot even be read


@dataclass(frozen=True)
class Plan:
    """What should exist."""

    objects: tuple[dict[str, Any], ...]  # to exist exactly so; in order of writing
    prune: tuple[Json, ...] = ()  # live objects to delete
    status: dict[str, Any] = field(default_factory=dict)  # whole status
    requeue_seconds: float | None = None  # look again after; None = when something changes
