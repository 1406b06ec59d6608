"""Computes the desired state of a V4Deployment from its spec and the observed state. Pure, except that new Secrets have
random content.

The result depends only on the spec, the live children and the routers' current answers. Earlier choices of the operator
are stored in the children (`v4_operator.manifests.accepted`, `v4_operator.manifests.deployments`). If the spec cannot
be parsed or is invalid, the last valid spec is followed instead; if there is none, nothing is created or changed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from v4_core.kubernetes import REVISION_LABEL, ROLE_LABEL, Json
from v4_operator.manifests.accepted import Accepted, accepted_object, last_accepted
from v4_operator.manifests.deployments import kept
from v4_operator.manifests.download import download, download_objects, outdated_jobs
from v4_operator.manifests.policies import disruption_budgets, network_policies
from v4_operator.manifests.router_objects import access_objects, account_uid, policy_map, router_deployment, service
from v4_operator.manifests.secret_objects import secret_objects
from v4_operator.manifests.settings import Settings
from v4_operator.manifests.workers import Workers, image_of, pod_roles, pods_for
from v4_operator.observed.compare import create_only, needs_write, upkept
from v4_operator.observed.fleet_view import FleetView
from v4_operator.observed.live import Live, Observed
from v4_operator.observed.objects import label
from v4_operator.spec.check import check
from v4_operator.spec.parse import SpecError, parse
from v4_operator.spec.problem import Problem
from v4_operator.spec.size import Size
from v4_operator.spec.v4deployment import V4Deployment
from v4_operator.state.revision import revision, router_image, worker_image
from v4_operator.state.revision_states import remembered, revision_states
from v4_operator.state.rollout import Wish, targets
from v4_operator.state.situation import Situation
from v4_operator.state.status import status_of
from v4_operator.state.status_patch import refused

_BUSY_SECONDS = 2.0  # routers must be polled: they send no events
_STUCK_SECONDS = 15.0
_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class DesiredState:
    """The objects and the status that a V4Deployment should have."""

    objects: tuple[dict[str, Any], ...]  # desired objects, in the order in which they are written
    prune: tuple[Json, ...] = ()  # live objects to delete
    status: dict[str, Any] = field(default_factory=dict)  # the whole status
    requeue_seconds: float | None = None  # time until the next reconcile; None = when something changes


def desired_state(parent: Json, observed: Observed, settings: Settings) -> DesiredState:
    """Returns the desired state of the V4Deployment `parent`; an empty one if it is being deleted."""
    metadata = parent["metadata"]
    if "deletionTimestamp" in metadata:
        return DesiredState(())
    accepted = last_accepted(metadata["name"], metadata["uid"], observed.children)
    v4d, problems = _read(parent, settings)
    former = accepted.instead_of(parent, settings.server_version) if problems else None
    followed = former or v4d
    if followed is None:
        reason, message = problems[0].reason, problems[0].message
        status = refused(observed.status, metadata["generation"], reason, message, observed.now)
        return DesiredState((), status=status)
    now = _situation(followed, problems, accepted, bool(former), observed, settings)
    if problems and not former:
        status = status_of(now)
        return DesiredState((), status=status, requeue_seconds=_requeue(now, status))
    workers = _workers(now, settings)
    desired = [*_around(now, settings, workers), *workers, *_router(now, settings)]
    now = replace(now, desired=desired)
    status = status_of(now)
    return DesiredState(
        objects=tuple(obj for obj in desired if not _is_made(obj, now.live)),
        prune=tuple(_unwanted(now.live, desired)),
        status=status,
        requeue_seconds=_requeue(now, status),
    )


def _read(parent: Json, settings: Settings) -> tuple[V4Deployment | None, list[Problem]]:
    """Parses and checks a V4Deployment; None if its spec cannot be parsed."""
    try:
        v4d = parse(parent)
    except SpecError as error:
        return None, [Problem(error.reason, str(error), "")]
    return v4d, check(v4d, settings.server_version)


def _situation(
    followed: V4Deployment,
    problems: list[Problem],
    accepted: Accepted,
    former: bool,
    observed: Observed,
    settings: Settings,
) -> Situation:
    """Combines the spec that is followed, which is that of `accepted` if `former`, with what exists."""
    live, fleet, spec = Live(followed, observed), FleetView(observed.fleets), followed.spec
    image = worker_image(followed, live, settings, accepted)
    current = revision(spec, image)
    if problems and not former:
        current, image = _serving(live, fleet)
    fetched = download(followed, live)
    exists = any(label(deployment, REVISION_LABEL) == current for deployment in live.workers)
    return Situation(
        v4d=followed,
        live=live,
        fleet=fleet,
        revisions=revision_states(live, fleet),
        revision=current,
        image=image,
        wanted=Size(spec.prefill.replicas, spec.decode.replicas),
        router_image=router_image(followed, live, settings, accepted),
        problems=problems,
        kept=accepted if former else None,
        download=fetched,
        startable=fetched.done or exists,
    )


def _serving(live: Live, fleet: FleetView) -> tuple[str, str]:
    """The revision that serves, or else the newest one, and its workers' image; both empty if there is no revision."""
    found = {label(d, REVISION_LABEL): d for d in live.workers}
    served = [revision for revision in found if fleet.served(revision)]
    chosen = next(iter(served), None) or next(reversed(found), "")
    return chosen, image_of(found[chosen]) if chosen else ""


def _around(now: Situation, settings: Settings, workers: Sequence[Json]) -> list[dict[str, Any]]:
    """The stored spec, and what pods need before they start: Secrets, RBAC, policies, the Service, the model."""
    v4d = now.v4d
    generation = now.kept.generation if now.kept else v4d.generation
    accepted = Accepted(v4d.written, now.image, now.router_image, generation)
    pools = dict.fromkeys((*pod_roles(v4d.spec), *(label(d, ROLE_LABEL) for d in now.live.workers)))
    return [
        accepted_object(v4d, settings, accepted),
        *secret_objects(v4d, settings),
        *access_objects(v4d, settings),
        policy_map(v4d, settings),
        *network_policies(v4d, settings, pools),
        *disruption_budgets(v4d, settings, [(label(d, ROLE_LABEL), label(d, REVISION_LABEL)) for d in workers]),
        service(v4d, settings),
        *download_objects(v4d, settings, now.image),
    ]


def _workers(now: Situation, settings: Settings) -> list[dict[str, Any]]:
    """The worker Deployments. Old revisions come first, so that they release resources before new pods need them."""
    strategy = now.v4d.spec.rollout.strategy
    wish = Wish(now.wanted, strategy == "Replace", now.startable, now.workers_stalled)
    sizes = targets(wish, now.current, now.others)
    old = [
        kept(now.v4d, settings, deployment, pods_for(label(deployment, ROLE_LABEL), sizes[name]))
        for deployment in now.live.workers
        if (name := label(deployment, REVISION_LABEL)) in sizes and name != now.revision
    ]
    made = Workers(now.v4d, settings, now.image, now.revision)
    new = made.deployments(sizes[now.revision]) if now.revision in sizes else []
    return [remembered(deployment, now.revisions) for deployment in (*old, *new)]


def _router(now: Situation, settings: Settings) -> list[dict[str, Any]]:
    """The router's Deployment. An existing one is unchanged until the model that new pods would read is downloaded."""
    if now.startable:
        account = account_uid(now.v4d, now.live)
        return [router_deployment(now.v4d, settings, now.router_image, account)]
    return [kept(now.v4d, settings, now.router, now.v4d.spec.router.replicas)] if now.router else []


def _unwanted(live: Live, desired: Sequence[Json]) -> list[Json]:
    """The live children to delete.

    A Secret that is no longer desired is deleted after the last pod that mounts it. The stored former spec is deleted
    once the new one is stored.
    """
    volumes = [volume for pod in live.pods for volume in pod["spec"].get("volumes") or ()]
    mounted = {("Secret", volume["secret"]["secretName"]) for volume in volumes if volume.get("secret")}
    memories = [obj for obj in desired if obj.get("immutable")]
    former = [obj for obj in live.owned if obj.get("immutable")]
    remembered = all(live.find(*_key(obj)) for obj in memories)
    kept = mounted | {_key(obj) for obj in (*desired, *(() if remembered else former))}
    return [*(obj for obj in live.owned if _key(obj) not in kept), *outdated_jobs(desired, live)]


def _is_made(obj: Json, live: Live) -> bool:
    """Whether `obj` is create-only and already exists as a child of this V4Deployment."""
    found = live.find(*_key(obj)) if create_only(obj) else None
    return found is not None and not needs_write(upkept(obj), found)


def _requeue(now: Situation, status: Json) -> float:
    """Seconds until the next reconcile if no event of a child causes an earlier one."""
    holding = {condition["type"] for condition in status["conditions"] if condition["status"] == "True"}
    if "Progressing" in holding and now.startable:
        return _BUSY_SECONDS
    return _IDLE_SECONDS if "Ready" in holding else _STUCK_SECONDS


def _key(obj: Json) -> tuple[str, str]:
    return obj["kind"], obj["metadata"]["name"]
