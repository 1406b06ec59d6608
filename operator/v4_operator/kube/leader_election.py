"""Leader election among the replicas of the operator, by a Kubernetes Lease that the leader holds and renews.

The clocks of other machines are not trusted. A replica takes the Lease if, by its own monotonic clock, the Lease's
record has not changed for as long as the record says. The leader measures the age of its leadership from before each
renewal was sent, and stops before another replica can start:

    renew every 10 s < give up 45 s after the last renewal + 10 s for a request < free for others after 60 s

An API server that restarts is unreachable for up to 30 s, which must not end its operators.

A pod may end without releasing the Lease: Helm deletes an operator's RBAC rights before the kubelet stops the pod. If
the holder's pod is gone, the other replicas wait only for the longest time between two renewals, because a process that
outlives its pod is noticed by its renewals:

    10 s for a request + 10 s until the next one + 10 s for that one = free for others after 30 s

One case is not covered: a pod that is deleted by force while its node cannot reach the API server. Its process leads
for up to 45 s after its last renewal. If the node recovers after 30 s, two operators may write for some seconds; both
write the same desired state.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from v4_core.kubernetes import Json
from v4_kube.client import KubeClient
from v4_kube.errors import ApiError
from v4_operator.errors import LeadershipLost
from v4_operator.kube.discovery import LEASES, PODS

log = logging.getLogger(__name__)

DURATION_SECONDS = 60
DEADLINE_SECONDS = 45.0
RENEW_SECONDS = 10.0
GONE_SECONDS = 30.0  # wait for a holder whose pod is gone
RETRY_SECONDS = 1.0  # between renewals that fail, and between reads of a Lease that another replica holds

_ENDING, _GONE = ", and its pod is being deleted", ", but its pod has ended"


class ObservedLease:
    """Decides whether a Lease may be taken, from the times at which its record was seen to change."""

    def __init__(self) -> None:
        self._record: Json | None = None
        self._since = 0.0

    def free(self, record: Json, now: float, *, gone: bool = False) -> bool:
        """Whether nobody holds the Lease. `now` is monotonic, in seconds; `gone`: the holder's pod is gone."""
        if not record.get("holderIdentity"):
            return True
        if record != self._record:
            self._record, self._since = record, now
        lasts = float(record.get("leaseDurationSeconds", DURATION_SECONDS))
        return now - self._since > (min(lasts, GONE_SECONDS) if gone else lasts)


class LeaderElection:
    """The part of one replica in the leader election.

    Two processes that run at the same time must have different identities. A process with the identity of a former one
    takes over at once. An identity without an underscore is the name of a pod in the Lease's namespace; names of pods
    have no underscore.
    """

    def __init__(
        self, api: KubeClient, namespace: str, name: str, identity: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.holder = ""  # identity of the leader, as last seen
        self.problem = ""  # why the Lease cannot be read, or that its holder is gone; empty if neither
        self._api, self._namespace, self._name, self._identity = api, namespace, name, identity
        self._clock = clock
        self._live: dict[str, Any] = {}  # the Lease as last written
        self._renewed = float("-inf")  # time before the last successful renewal was sent

    def check(self) -> None:
        """Raises LeadershipLost if another replica may lead soon."""
        if self._clock() - self._renewed > DEADLINE_SECONDS:
            raise LeadershipLost("leadership is lost: the Lease was not renewed in time")

    async def acquire(self) -> None:
        """Waits until the Lease is free, and takes it."""
        observed, last, lease = ObservedLease(), "", f"the Lease {self._namespace}/{self._name}"
        while True:
            try:
                state = await self._try(observed)
                if state is None:
                    self.problem = ""
                    return
                message = f"waiting: {self.holder} leads and holds {lease}{state}"
                self.problem = message if state else ""
            except ApiError as error:
                message = self.problem = f"cannot take {lease}: {error}"
            if message != last:
                log.info("%s", message)
            last = message
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))

    async def _try(self, observed: ObservedLease) -> str | None:
        """Returns None if the Lease is taken; else what is wrong with its holder's pod, or "" if nothing is."""
        sent = self._clock()
        try:
            live = await self._get()
            record = live.get("spec") or {}
            self.holder = record.get("holderIdentity") or ""
            if self.holder != self._identity and not observed.free(record, sent):
                state = await self._pod_state()
                if not observed.free(record, sent, gone=state == _GONE):
                    return state
            sent = self._clock()
            if live:
                spec = self._spec(record.get("leaseTransitions", 0) + 1)
                self._live = await self._api.replace(LEASES, {**live, "spec": spec})
            else:
                metadata = {"namespace": self._namespace, "name": self._name}
                body = {"apiVersion": LEASES.api_version, "kind": LEASES.kind, "metadata": metadata}
                self._live = await self._api.create(LEASES, {**body, "spec": self._spec(0)})
        except ApiError as error:
            if error.status != 409:  # another replica was faster
                raise
            return ""
        self._renewed, self.holder = sent, self._identity
        return None

    async def _pod_state(self) -> str:
        """Returns how the holder's pod ended; "" if the pod runs, or if its state is unknown."""
        if not self.holder or "_" in self.holder:
            return ""
        try:
            pod = await self._api.get(PODS.path(self._namespace, self.holder))
        except ApiError as error:
            if error.status == 403:  # RBAC of an older chart: only the Lease's duration counts
                return ""
            if error.status != 404:
                raise
            return _GONE
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return _GONE
        return _ENDING if pod["metadata"].get("deletionTimestamp") else ""

    async def keep(self) -> None:
        """Renews the Lease until cancelled. Raises LeadershipLost if another replica leads or may lead soon."""
        while True:
            await asyncio.sleep(RENEW_SECONDS)
            await self._renew_in_time()

    async def _renew_in_time(self) -> None:
        while True:
            left = self._renewed + DEADLINE_SECONDS - self._clock()
            try:
                async with asyncio.timeout(left):
                    await self._renew()
                return
            except TimeoutError as error:
                raise LeadershipLost("leadership is lost: the API server did not answer a renewal") from error
            except ApiError as error:
                log.warning("cannot renew the Lease, %.0f s left: %s", left, error)
            await asyncio.sleep(RETRY_SECONDS)
            self.check()

    async def _renew(self) -> None:
        sent = self._clock()
        try:
            self._live = await self._api.replace(LEASES, {**self._live, "spec": self._spec(self._transitions())})
        except ApiError as error:
            if error.status not in (404, 409):
                raise
            await self._reread()
            raise
        self._renewed = sent

    async def _reread(self) -> None:
        """Reads the Lease after somebody else changed it. Raises LeadershipLost unless it still names this replica."""
        live = await self._get()
        self.holder = (live.get("spec") or {}).get("holderIdentity") or ""
        if self.holder != self._identity:
            raise LeadershipLost(f"leadership is lost: {self.holder or 'nobody'} holds the Lease now")
        self._live = live

    async def release(self) -> None:
        """Releases the Lease, so that another replica can take it at once. Raises ApiError."""
        spec = {**self._live["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        await self._api.replace(LEASES, {**self._live, "spec": spec})
        self._renewed = float("-inf")

    async def _get(self) -> dict[str, Any]:
        """Reads the Lease; empty if there is none."""
        try:
            live: dict[str, Any] = await self._api.get(LEASES.path(self._namespace, self._name))
        except ApiError as error:
            if error.status != 404:
                raise
            return {}
        return live

    def _transitions(self) -> int:
        return int(self._live["spec"].get("leaseTransitions", 0))

    def _spec(self, transitions: int) -> dict[str, Any]:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        held = self._live.get("spec", {}) if self.holder == self._identity else {}
        return {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": DURATION_SECONDS,
            "acquireTime": held.get("acquireTime", now),
            "renewTime": now,
            "leaseTransitions": transitions,
        }
