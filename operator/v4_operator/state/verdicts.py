"""Derives the conditions Ready, Progressing and Degraded from a situation, with reasons and advice. Pure."""

from collections.abc import Iterator
from datetime import timedelta

from v4_core.kubernetes import WorkerRole
from v4_operator.manifests.accepted import Accepted
from v4_operator.manifests.names import child
from v4_operator.manifests.router_objects import ROUTER, router_account
from v4_operator.observed.deadline import ready_since
from v4_operator.observed.objects import count, holds, replicas
from v4_operator.observed.troubles import Trouble, initializing
from v4_operator.spec.capacity import planned
from v4_operator.spec.size import NONE
from v4_operator.state.conditions import Condition, joined
from v4_operator.state.rollout import Wish, outage
from v4_operator.state.situation import Situation

PODS_UNSEEN = "PodsUnseen"  # reason: a router cannot watch pods
OUTAGE = "Outage"  # reason: nothing serves, because the strategy removes old workers first

_CAPACITY_SHARE = 0.05  # relative difference allowed between reported and planned slots
_PROBED_AFTER = timedelta(seconds=10)  # routers retry a failed probe every 2 s
_ROLES: tuple[WorkerRole, WorkerRole] = ("prefill", "decode")


def verdicts(now: Situation) -> list[Condition]:
    """Returns the three conditions in the order of the status."""
    return [_ready(now), _progressing(now), _degraded(now)]


def _ready(now: Situation) -> Condition:
    """Ready is true if the current revision was proven to serve, regardless of any ongoing change."""
    if now.problems:
        problem = now.problems[0]
        also = f"; revision {now.revision} of a former spec still serves" if now.served else ""
        return Condition("Ready", False, problem.reason, problem.message + also)
    if now.served:
        return Condition("Ready", True, "Serving", f"revision {now.revision} serves by prefill, transfer and decode")
    reason, message = _why_not_ready(now)
    also = f"; revision {now.meanwhile} serves meanwhile" if now.meanwhile else ""
    return Condition("Ready", False, reason, message + also)


def _why_not_ready(now: Situation) -> tuple[str, str]:
    if empty := _empty_pools(now):
        return (
            "ScaledToZero",
            f"{' and '.join(empty)} replicas are 0: Ready requires a prefill worker, a decode worker and a router",
        )
    if not now.startable:
        return "ModelNotFetched", f"Job {now.download.job} has not downloaded the model yet"
    if not now.current.ready.pairs:
        slow = initializing(now.worker_pods)
        return "WorkersNotReady", f"no pair of workers is ready: {_counts(now)}{f'; {slow}' if slow else ''}"
    if now.fleet.unseen and not now.fleet.served(now.revision):
        return PODS_UNSEEN, _unseen(now)
    if now.fleet.answers and not now.fleet.served(now.revision):
        error = now.fleet.error(now.revision)
        return "NotProbed", f"no probe went through prefill, transfer and decode yet{f': {error}' if error else ''}"
    if not count(now.router, "readyReplicas"):
        slow = initializing(now.live.pods_of(ROUTER))
        return "RouterNotReady", f"no router is ready{f': {slow}' if slow else ''}"
    return "NotProbed", "no router answers at its monitoring port, so it is unknown whether the current revision serves"


def _progressing(now: Situation) -> Condition:
    """Progressing is true while a change is under way; false once it is complete or cannot continue."""
    if now.problems:
        message = f"the spec is invalid: see Degraded; {_instead(now.kept)}"
        return Condition("Progressing", False, now.problems[0].reason, message)
    if now.download.failure and not now.startable:
        return Condition("Progressing", False, "ModelFetchFailed", "the model cannot be downloaded: see Degraded")
    if not now.startable:
        return Condition(
            "Progressing", True, "FetchingModel", f"Job {now.download.job} is downloading the model{_attempt(now)}"
        )
    if now.finished:
        return Condition("Progressing", False, "Complete", f"the desired state is reached: {_counts(now)}")
    if now.stalled:
        limit = now.v4d.spec.rollout.progress_deadline_seconds
        message = f"no progress within {limit} s: {_counts(now)}"
        return Condition("Progressing", False, "ProgressDeadlineExceeded", f"{message}{_others(now)}; see Degraded")
    if _outage(now):
        message = "strategy Replace with a single worker of a role: nothing serves until its successor is ready"
        return Condition("Progressing", True, OUTAGE, f"{message}; {_counts(now)}")
    if now.olds:
        return Condition("Progressing", True, "RollingOut", f"{_counts(now)}{_others(now)}")
    if now.current.settled:
        return Condition("Progressing", True, "Updating", f"{_counts(now)}; {_updated(now)}")
    return Condition("Progressing", True, "Creating", _counts(now))


def _instead(kept: Accepted | None) -> str:
    """What the operator does instead of following an invalid spec."""
    if kept is None:
        return "nothing is created or changed until it is corrected"
    return f"the last valid one{f', of generation {kept.generation},' if kept.generation else ''} is followed meanwhile"


def _degraded(now: Situation) -> Condition:
    """Degraded is true if something needs attention, whether or not requests are served."""
    found = list(_troubles(now))
    if not found:
        return Condition("Degraded", False, "AsExpected", "no problem is known")
    return Condition("Degraded", True, found[0].reason, joined([trouble.message for trouble in found]))


def _troubles(now: Situation) -> Iterator[Trouble]:
    yield from (Trouble(problem.reason, problem.message) for problem in now.problems)
    if now.download.failure:
        message = f"Job {now.download.job}: {now.download.failure}{_attempt(now)}; delete the Job to try again"
        yield Trouble("ModelFetchFailed", message)
    yield from now.troubles
    if now.fleet.unseen:
        yield Trouble(PODS_UNSEEN, _unseen(now))
    if now.stalled and not now.troubles:
        yield Trouble("ProgressDeadlineExceeded", f"no progress in time: {_why_not_ready(now)[1]}")
    error = now.fleet.error(now.revision)
    if error and _probed_long_enough(now) and not now.fleet.served(now.revision):
        yield Trouble("ProbeFailed", f"a probe did not go through prefill, transfer and decode: {error}")
    for role in _ROLES:
        yield from _mismatch(now, role)


def _unseen(now: Situation) -> str:
    """The router's error, and the remedy if the API server refuses the router's token."""
    message = f"a router cannot find new workers: {now.fleet.unseen}"
    if "HTTP 401" not in now.fleet.unseen:
        return message
    restart = f"`kubectl rollout restart deployment/{child(now.v4d, ROUTER)}` gives its pods a new one"
    reason = f"its token is no longer valid, for example because ServiceAccount {router_account(now.v4d)} was replaced"
    return f"{message}; {reason}: {restart}"


def _probed_long_enough(now: Situation) -> bool:
    """Whether pairs have been ready for so long that the routers must have tried to probe them."""
    pods = [pod for pod in now.worker_pods if holds(pod, "Ready")]
    return bool(now.current.ready.pairs and pods) and (
        now.live.observed.now - max(map(ready_since, pods)) >= _PROBED_AFTER
    )


def _attempt(now: Situation) -> str:
    return f"; its last attempt ended with: {now.download.error}" if now.download.error else ""


def _mismatch(now: Situation, role: WorkerRole) -> Iterator[Trouble]:
    """A trouble if workers report another number of slots than planned: the profile is wrong or the layout differs."""
    plan, reported = planned(now.v4d, role), now.fleet.slots(role, now.revision)
    if now.problems or not plan or not reported or not now.up_to_date:
        return
    if abs(min(reported) - plan.slots) > _CAPACITY_SHARE * plan.slots:
        message = f"a {role} worker has {min(reported)} block slots, but {plan.slots} were planned"
        yield Trouble("CapacityMismatch", f"{message}: check model.profile and the formats of cache")


def _empty_pools(now: Situation) -> list[str]:
    sizes = {"prefill": now.wanted.prefill, "decode": now.wanted.decode, "router": now.v4d.spec.router.replicas}
    return [pool for pool, size in sizes.items() if not size]


def _counts(now: Situation) -> str:
    ready, wanted = now.current.ready, now.wanted
    pools = f"{ready.prefill} of {wanted.prefill} prefill and {ready.decode} of {wanted.decode} decode workers"
    return f"{pools} of revision {now.revision} are ready"


def _updated(now: Situation) -> str:
    """The progress of a change that replaces pods within the revision."""
    updated, wanted = sum(map(now.updated, now.deployments)), sum(map(replicas, now.deployments))
    return f"{updated} of {wanted} worker pods match the spec"


def _others(now: Situation) -> str:
    """Names the old revisions that still serve."""
    serving = sorted(old.revision for old in now.olds if old.ready.pairs and (old.probed or old.settled))
    return f"; revision {', '.join(serving)} still serves" if serving else ""


def _outage(now: Situation) -> bool:
    """Whether the old pods are removed before the new ones are ready: pods are still ending, or the status already
    says so."""
    if now.current.ready.pairs or not outage(Wish(now.wanted, replace=now.v4d.spec.rollout.strategy == "Replace")):
        return False
    said = any(c.get("reason") == OUTAGE for c in now.live.observed.status.get("conditions") or ())
    return said or any(other.pods != NONE for other in now.others) or not now.wanted.covers(now.current.pods)
