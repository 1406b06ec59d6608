"""Ready, Progressing and Degraded: what is true of a situation, why, and what to do about it. Pure."""

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

PODS_UNSEEN = "PodsUnseen"  # reason: a router cannot read pods
OUTAGE = "Outage"  # reason: nothing serves, as was asked for

_CAPACITY_SHARE = 0.05  # that reported slots may differ from planned ones
_PROBED_AFTER = timedelta(seconds=10)  # routers try again every other second
_ROLES: tuple[WorkerRole, WorkerRole] = ("prefill", "decode")


def verdicts(now: Situation) -> list[Condition]:
    """The conditions, in order."""
    return [_ready(now), _progressing(now), _degraded(now)]


def _ready(now: Situation) -> Condition:
    """True if the revision that the spec asks for was seen to serve, whatever else is going on."""
    if now.problems:
        problem = now.problems[0]
        also = f"; revision {now.revision}, of a former spec, serves on" if now.served else ""
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
            f"{' and '.join(empty)} replicas are 0: Ready tells of a transfer, which needs one of each",
        )
    if not now.startable:
        return "ModelNotFetched", f"Job {now.download.job} has not fetched the model yet"
    if not now.current.ready.pairs:
        slow = initializing(now.worker_pods)
        return "WorkersNotReady", f"no pair of workers is ready: {_counts(now)}{f'; {slow}' if slow else ''}"
    if now.fleet.unseen and not now.fleet.served(now.revision):
        return PODS_UNSEEN, _unseen(now)
    if now.fleet.answers and not now.fleet.served(now.revision):
        error = now.fleet.error(now.revision)
        return "NotProbed", f"no token went through prefill, transfer and decode yet{f': {error}' if error else ''}"
    if not count(now.router, "readyReplicas"):
        slow = initializing(now.live.pods_of(ROUTER))
        return "RouterNotReady", f"no router is ready{f': {slow}' if slow else ''}"
    return "NotProbed", "no router can be asked at its monitoring port whether the current revision serves"


def _progressing(now: Situation) -> Condition:
    """True while something changes by itself; False at the end, and where it does not go on."""
    if now.problems:
        message = f"the spec cannot be followed: see Degraded; {_instead(now.kept)}"
        return Condition("Progressing", False, now.problems[0].reason, message)
    if now.download.failure and not now.startable:
        return Condition("Progressing", False, "ModelFetchFailed", "the model cannot be fetched: see Degraded")
    if not now.startable:
        return Condition(
            "Progressing", True, "FetchingModel", f"Job {now.download.job} fetches the model{_attempt(now)}"
        )
    if now.finished:
        return Condition("Progressing", False, "Complete", f"all is as asked for: {_counts(now)}")
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
    """What is done in place of following a spec with problems."""
    if kept is None:
        return "nothing is made or changed meanwhile"
    return f"the last good one{f', of generation {kept.generation},' if kept.generation else ''} is kept meanwhile"


def _degraded(now: Situation) -> Condition:
    """True if something needs to be looked at, whether or not requests are served."""
    found = list(_troubles(now))
    if not found:
        return Condition("Degraded", False, "AsExpected", "nothing is known to be wrong")
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
        yield Trouble("ProbeFailed", f"a token did not go through prefill, transfer and decode: {error}")
    for role in _ROLES:
        yield from _mismatch(now, role)


def _unseen(now: Situation) -> str:
    """A router's words, and what helps where the API server refuses its token."""
    message = f"a router finds no new workers: {now.fleet.unseen}"
    if "HTTP 401" not in now.fleet.unseen:
        return message
    restart = f"`kubectl rollout restart deployment/{child(now.v4d, ROUTER)}` gives its pods a new one"
    return f"{message}; its token is dead, as after a change of ServiceAccount {router_account(now.v4d)}: {restart}"


def _probed_long_enough(now: Situation) -> bool:
    """Whether pairs have been ready for so long that routers must have reached them."""
    pods = [pod for pod in now.worker_pods if holds(pod, "Ready")]
    return bool(now.current.ready.pairs and pods) and (
        now.live.observed.now - max(map(ready_since, pods)) >= _PROBED_AFTER
    )


def _attempt(now: Situation) -> str:
    return f"; its last attempt ended with: {now.download.error}" if now.download.error else ""


def _mismatch(now: Situation, role: WorkerRole) -> Iterator[Trouble]:
    """Workers that hold more or less than memory and formats say: a wrong profile, or another layout."""
    plan, reported = planned(now.v4d, role), now.fleet.slots(role, now.revision)
    if now.problems or not plan or not reported or not now.up_to_date:
        return
    if abs(min(reported) - plan.slots) > _CAPACITY_SHARE * plan.slots:
        message = f"a {role} worker has {min(reported)} block slots, {plan.slots} were planned"
        yield Trouble("CapacityMismatch", f"{message}: check model.profile and the formats of cache")


def _empty_pools(now: Situation) -> list[str]:
    sizes = {"prefill": now.wanted.prefill, "decode": now.wanted.decode, "router": now.v4d.spec.router.replicas}
    return [pool for pool, size in sizes.items() if not size]


def _counts(now: Situation) -> str:
    ready, wanted = now.current.ready, now.wanted
    pools = f"{ready.prefill} of {wanted.prefill} prefill and {ready.decode} of {wanted.decode} decode workers"
    return f"{pools} of revision {now.revision} are ready"


def _updated(now: Situation) -> str:
    """How far a change of pods alone has come."""
    updated, wanted = sum(map(now.updated, now.deployments)), sum(map(replicas, now.deployments))
    return f"{updated} of {wanted} worker pods are as the spec has them"


def _others(now: Situation) -> str:
    """What becomes of old revisions."""
    serving = sorted(old.revision for old in now.olds if old.ready.pairs and (old.probed or old.settled))
    return f"; revision {', '.join(serving)} still serves" if serving else ""


def _outage(now: Situation) -> bool:
    """Whether old pods went before new ones are ready: that they end is seen, or it was said before."""
    if now.current.ready.pairs or not outage(Wish(now.wanted, replace=now.v4d.spec.rollout.strategy == "Replace")):
        return False
    said = any(c.get("reason") == OUTAGE for c in now.live.observed.status.get("conditions") or ())
    return said or any(other.pods != NONE for other in now.others) or not now.wanted.covers(now.current.pods)
