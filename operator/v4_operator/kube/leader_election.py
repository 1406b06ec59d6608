"""The Lease that one replica of the operator holds while it works.

Clocks of other machines are not trusted: a Lease is free when its record was not seen to change for as long as the
record itself says, by this machine's monotonic clock. The holder counts its own time from before each renewal was
sent, and stops before anybody else can begin:

    renew every 10 s < give up 45 s after the last renewal, + 10 s of a request < free for others after 60 s

An API server that is restarted is away for up to half a minute, and must not end its operators.

A pod may go without giving its Lease up: Helm deletes an operator's rights before kubelet stops it. A holder whose pod
is gone is waited for no longer than a living one takes from one renewal to the next, since a process that outlives its
pod shows by its renewals:

    10 s of a request + 10 s until the next + 10 s of that = free for others after 30 s, where the holder's pod is gone

One case is not covered: a pod that is deleted by force while its node cannot reach the API server. Its process trusts
itself for 45 s, so that if the node is back after 30 s, two operators may write for some seconds, both the same plan.
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
GONE_SECONDS = 30.0  # that a holder without a pod is waited for
RETRY_SECONDS = 1.0  # of a renewal that failed, and of a look at a Lease that another replica holds


_ENDING, _GONE = ", and its pod is being deleted", ", but its pod has ended"


class Sightings:
    """Decides whether a Lease may be taken, from what was seen of it and when."""

    def __init__(self) -> None:
        self._record: Json | None = None
        self._since = 0.0

    def free(self, record: Json, now: float, *, gone: bool = False) -> bool:
        """Whether nobody holds the Lease; `now` is monotonic, in seconds. `gone`: the holder's pod is."""
        if not record.get("holderIdentity"):
            return True
        if record != self._record:
            self._record, self._since = record, now
        lasts = float(record.get("leaseDurationSeconds", DURATION_SECONDS))
        return now - self._since > (min(lasts, GONE_SECONDS) if gone else lasts)


class LeaderElection:
    """One replica's view of the Lease. No two processes that live at once may have the same `identity`; one that
    follows another under its identity takes over at once. The name of a pod in the Lease's namespace stands for that
    pod; an identity of anything else has an underscore, which no name of a pod has.
    """

    def __init__(
        self, api: KubeClient, namespace: str, name: str, identity: str, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.holder = ""  # as seen last
        self.problem = ""  # why it cannot be asked for, or that nobody who lives holds it
        self._api, self._namespace, self._name, self._identity = api, namespace, name, identity
        self._clock = clock
        self._live: dict[str, Any] = {}  # as written last
        self._renewed = float("-inf")  # by the clock, before the renewal was sent

    def check(self) -> None:
        """Raises LeadershipLost where another replica may hold the Lease soon."""
        if self._clock() - self._renewed > DEADLINE_SECONDS:
            raise LeadershipLost("the Lease was not renewed in time")

    async def acquire(self) -> None:
        """Wait until the Lease is free, and take it."""
        sightings, last, lease = Sightings(), "", f"the Lease {self._namespace}/{self._name}"
        while True:
            try:
                fate = await self._try(sightings)
                if fate is None:
                    self.problem = ""
                    return
                said = f"waiting: {self.holder} holds {lease}{fate}"
                self.problem = said if fate else ""
            except ApiError as error:
                said = self.problem = f"cannot take {lease}: {error}"
            if said != last:
                log.info("%s", said)
            last = said
            await asyncio.sleep(RETRY_SECONDS * random.uniform(0.5, 1.5))

    async def _try(self, sightings: Sightings) -> str | None:
        """None once it is taken; else what is wrong with its holder, empty if nothing is."""
        sent = self._clock()
        try:
            live = await self._get()
            record = live.get("spec") or {}
            self.holder = record.get("holderIdentity") or ""
            if self.holder != self._identity and not sightings.free(record, sent):
                fate = await self._fate()
                if not sightings.free(record, sent, gone=fate == _GONE):
                    return fate
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

    async def _fate(self) -> str:
        """What became of the holder's pod; empty if it lives, or nobody here knows."""
        if not self.holder or "_" in self.holder:
            return ""
        try:
            pod = await self._api.get(PODS.path(self._namespace, self.holder))
        except ApiError as error:
            if error.status == 403:  # rights of an older chart: the Lease's own time counts
                return ""
            if error.status != 404:
                raise
            return _GONE
        if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return _GONE
        return _ENDING if pod["metadata"].get("deletionTimestamp") else ""

    async def keep(self) -> None:
        """Renew for ever. Raises LeadershipLost once another replica holds the Lease, or may do so soon."""
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
                raise LeadershipLost("the Lease could not be renewed: the API server does not answer") from error
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
            await self._look_again()
            raise
        self._renewed = sent

    async def _look_again(self) -> None:
        """After somebody else wrote or deleted the Lease. Raises LeadershipLost unless it still names this replica."""
        live = await self._get()
        self.holder = (live.get("spec") or {}).get("holderIdentity") or ""
        if self.holder != self._identity:
            raise LeadershipLost(f"{self.holder or 'nobody'} holds the Lease now")
        self._live = live

    async def release(self) -> None:
        """Let another replica begin at once. Raises ApiError where that could not be written."""
        spec = {**self._live["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        await self._api.replace(LEASES, {**self._live, "spec": spec})
        self._renewed = float("-inf")

    async def _get(self) -> dict[str, Any]:
        """The Lease; empty where there is none."""
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
