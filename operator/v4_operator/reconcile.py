"""Reconciles one V4Deployment: reads caches, asks routers, computes the desired state, writes, deletes, reports.

Every reconcile starts from what exists. Between two reconciles the process remembers only its caches, and the times in
`v4_operator.state.history`. A V4Deployment that is being deleted is left alone: the garbage collector deletes its
children.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from v4_core.kubernetes import Json
from v4_kube.client import KubeClient
from v4_kube.errors import ApiError
from v4_operator.desired import DesiredState
from v4_operator.errors import EVENT, OperatorError
from v4_operator.kube import events
from v4_operator.kube.apply import Applier
from v4_operator.kube.cache import Children, Parents
from v4_operator.kube.discovery import Discovery
from v4_operator.kube.fleet import Fleets
from v4_operator.kube.watch import Watches
from v4_operator.manifests.settings import Settings
from v4_operator.metrics import ERRORS, RECONCILE_SECONDS, TIME_TO_READY
from v4_operator.observed.live import Observed
from v4_operator.observed.needs import Need
from v4_operator.observed.objects import Key, key_of
from v4_operator.observed.troubles import unmet
from v4_operator.state.history import Failures, Readiness
from v4_operator.state.status_patch import merge_patch, transitions, with_errors

log = logging.getLogger(__name__)

Decide = Callable[[Json, Observed, Settings], DesiredState]


class Reconciler:
    """Reconciles the V4Deployments of one cluster. A V4Deployment must not be reconciled twice at the same time."""

    def __init__(
        self,
        api: KubeClient,
        discovery: Discovery,
        parents: Parents,
        children: Children,
        watches: Watches,
        fleets: Fleets,
        settings: Settings,
        decide: Decide,
    ) -> None:
        self.settings = settings
        self._api, self._discovery, self._watches, self._fleets = api, discovery, watches, fleets
        self._parents, self._children = parents, children
        self._applier = Applier(api, discovery, children)
        self._decide = decide
        self._readiness, self._failures = Readiness(), Failures()

    async def reconcile(self, key: Key) -> float | None:
        """Reconciles one V4Deployment. Returns the seconds until the next reconcile, or None. Raises a Failure."""
        await self._watches.synced()
        parent = self._parents.get(key)
        if parent is None or _is_deleting(parent):
            self._readiness.forget(key)
            self._failures.forget(key)
            return None
        with RECONCILE_SECONDS.time():
            return await self._reconcile(key, parent)

    async def _reconcile(self, key: Key, parent: Json) -> float | None:
        uid, generation = parent["metadata"]["uid"], parent["metadata"]["generation"]
        fleets = await self._fleets.ask(self._children.of(key, uid))
        now, old = datetime.now(UTC), parent.get("status") or {}
        absent = await self._absent(key, uid, now)
        observed = Observed(now, self._children.of(key, uid), fleets, old, absent)  # the children as they are by now
        desired = self._decide(parent, observed, self._settings())
        errors = await self._applier.apply(desired.objects, lambda: self._wanted(key, uid))
        if self._wanted(key, uid):
            errors += await self._applier.prune(desired.prune)
            stuck = self._failures.look(key, errors, now)
            status = with_errors(desired.status, old, errors, generation, now, stuck=stuck)
            await self._write_status(parent, status, now)
        if errors:
            failure = OperatorError("; ".join(map(str, errors)))
            failure.kind = errors[0].kind
            raise failure from errors[0]
        return desired.requeue_seconds

    async def _absent(self, key: Key, uid: str, now: datetime) -> frozenset[Need]:
        """Returns the missing objects that pods need to start. An object that cannot be read counts as present."""
        pods = [child for child in self._children.of(key, uid) if child["kind"] == "Pod"]
        found = set()
        for need in unmet(pods, now):
            try:
                resource = await self._discovery.resource("v1", need.kind)
                if not await self._api.exists(resource, key.namespace, need.name):
                    found.add(need)
            except ApiError as error:
                log.warning("%s: cannot tell whether %s exists: %s", key, need, error)
        return frozenset(found)

    def _settings(self) -> Settings:
        features = self._discovery.features
        return replace(self.settings, server_version=features.version, kinds=features.kinds)

    def _wanted(self, key: Key, uid: str) -> bool:
        """Whether the V4Deployment still exists and is not being deleted."""
        parent = self._parents.get(key)
        return parent is not None and parent["metadata"]["uid"] == uid and not _is_deleting(parent)

    async def _write_status(self, parent: Json, status: dict[str, Any], now: datetime) -> None:
        """Writes the status if it differs, and posts Events. Does nothing if the V4Deployment was deleted meanwhile."""
        if (seconds := self._readiness.look(key_of(parent), parent, status, now)) is not None:
            TIME_TO_READY.observe(seconds)
        old = parent.get("status") or {}
        patch = merge_patch(old, status)
        resource = self._discovery.features.v4deployments
        if not patch or resource is None:
            return
        metadata = parent["metadata"]
        body = {"metadata": {"uid": metadata["uid"]}, "status": patch}
        try:
            written = await self._api.patch_status(resource, metadata["namespace"], metadata["name"], body)
        except ApiError as error:
            if error.status != 404:
                raise
            self._parents.remove(parent)
            return
        self._parents.put(written)
        await self._post_events(written, old, status)

    async def _post_events(self, parent: Json, old: Json, new: Json) -> None:
        try:
            for transition in transitions(old, new):
                await events.post(self._api, parent, transition.kind, transition.reason, transition.message)
        except ApiError as error:
            ERRORS.labels(EVENT).inc()
            log.warning("%s: an Event could not be created: %s", parent["metadata"]["name"], error)


def _is_deleting(parent: Json) -> bool:
    return "deletionTimestamp" in parent["metadata"]
