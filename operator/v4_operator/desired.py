"""From a V4Deployment and what exists of it to what should exist. Pure, but for the content of new Secrets.

Every answer follows from the spec, the children and the routers' answers of this moment. What the operator once chose
is remembered by children that nobody else has a say in (`v4_operator.manifests.accepted`,
`v4_operator.manifests.deployments`). In place of a spec that cannot be followed the last good one is; where there is
none, nothing is made or changed.
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
from v4_operator.spec.size import Size
from v4_operator.spec.v4deployment import V4Deployment
from v4_operator.state.revision import revision, router_image, worker_image
from v4_operator.state.revision_states import remembered, revision_states
from v4_operator.state.rollout import Wish, targets
from v4_operator.state.situation import Situation
from v4_operator.state.status import status_of

_BUSY_SECONDS = 2.0  # routers say nothing by themselves
_STUCK_SECONDS = 15.0
_IDLE_SECONDS = 60.0


@dataclass(frozen=True)
class DesiredState:
    """What should exist."""

    objects: tuple[dict[str, Any], ...]  # to exist exactly so; in order of writing
    prune: tuple[Json, ...] = ()  # live objects to delete
    status: dict[str, Any] = field(default_factory=dict)  # whole status
    requeue_seconds: float | None = None  # look again after; None = when something changes


def desired_state(v4d: V4Deployment, observed: Observed, settings: Settings) -> DesiredState:
    """What should exist; nothing for a V4Deployment that is being deleted."""
    if v4d.deleting:
        return DesiredState(())
    now = _situation(v4d, observed, settings)
    if now.problems and not now.kept:
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


def _situation(v4d: V4Deployment, observed: Observed, settings: Settings) -> Situation:
    """What there is, and which revision the spec asks for that is followed."""
    accepted = last_accepted(v4d.name, v4d.uid, observed.children)
    problems = [observed.unread] if observed.unread else check(v4d, settings.server_version)
    former = accepted.instead_of(v4d, settings.server_version) if problems else None
    followed = former or v4d
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
    """The revision that serves, or else the newest one, and the image of its workers; empty if there is none."""
    found = {label(d, REVISION_LABEL): d for d in live.workers}
    served = [revision for revision in found if fleet.served(revision)]
    chosen = next(iter(served), None) or next(reversed(found), "")
    return chosen, image_of(found[chosen]) if chosen else ""


def _around(now: Situation, settings: Settings, workers: Sequence[Json]) -> list[dict[str, Any]]:
    """The memory of the spec, and what pods need before they start: secrets, rights, rules, addresses, the model."""
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
    """Worker Deployments: old ones first, so that what they free is free."""
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
    """The router's Deployment; one that runs stays as it is until the model is there that a new one would read."""
    if now.startable:
        account = account_uid(now.v4d, now.live)
        return [router_deployment(now.v4d, settings, now.router_image, account)]
    return [kept(now.v4d, settings, now.router, now.v4d.spec.router.replicas)] if now.router else []


def _unwanted(live: Live, desired: Sequence[Json]) -> list[Json]:
    """Live children to delete.

    A Secret that is no longer wanted goes after the last pod that needs it to start, and the memory of the former spec
    once that of the new one is there.
    """
    volumes = [volume for pod in live.pods for volume in pod["spec"].get("volumes") or ()]
    mounted = {("Secret", volume["secret"]["secretName"]) for volume in volumes if volume.get("secret")}
    memories = [obj for obj in desired if obj.get("immutable")]
    former = [obj for obj in live.owned if obj.get("immutable")]
    remembered = all(live.find(*_key(obj)) for obj in memories)
    kept = mounted | {_key(obj) for obj in (*desired, *(() if remembered else former))}
    return [*(obj for obj in live.owned if _key(obj) not in kept), *outdated_jobs(desired, live)]


def _is_made(obj: Json, live: Live) -> bool:
    """Whether an object whose content is left alone exists, as a child of this V4Deployment."""
    found = live.find(*_key(obj)) if create_only(obj) else None
    return found is not None and not needs_write(upkept(obj), found)


def _requeue(now: Situation, status: Json) -> float:
    """Seconds until the next look, where no event of a child may call for it."""
    holding = {condition["type"] for condition in status["conditions"] if condition["status"] == "True"}
    if "Progressing" in holding and now.startable:
        return _BUSY_SECONDS
    return _IDLE_SECONDS if "Ready" in holding else _STUCK_SECONDS


def _key(obj: Json) -> tuple[str, str]:
    return obj["kind"], obj["metadata"]["name"]
