"""What a leader remembers of earlier reconciles: since when a V4Deployment is on its way to Ready, and since when its
writes fail. Pure; nothing of it outlives the process.

The time to Ready of a change that a former leader began with is not measured: when it began is no longer known. A
failed write that is expected to succeed on a retry is reported in the status only once it has failed for a while.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from v4_core.kubernetes import Json
from v4_operator.errors import Failure
from v4_operator.observed.objects import Key, moment

_PATIENCE = timedelta(seconds=60)  # longer than an etcd election, a certificate renewal or an API server's restart


class _Wait(NamedTuple):
    uid: str
    generation: int
    since: datetime | None  # None: the time to Ready is not measured


class Readiness:
    """Since when each V4Deployment is on its way to Ready."""

    def __init__(self) -> None:
        self._waits: dict[Key, _Wait] = {}

    def look(self, key: Key, parent: Json, status: Json, now: datetime) -> float | None:
        """Records a reconcile of `parent` that led to `status`. Returns the seconds to Ready if it just became so."""
        metadata = parent["metadata"]
        wait = self._waits.get(key)
        if wait is None or wait[:2] != (metadata["uid"], metadata["generation"]):
            old = parent.get("status") or {}
            since = None if is_ready(old) and is_ready(status) else _beginning(metadata, old, now)
            wait = self._waits[key] = _Wait(metadata["uid"], metadata["generation"], since)
        if wait.since is None or not is_ready(status):
            return None
        self._waits[key] = wait._replace(since=None)
        return max(0.0, (now - wait.since).total_seconds())

    def forget(self, key: Key) -> None:
        """Drops a V4Deployment that is being deleted or is gone."""
        self._waits.pop(key, None)


def _beginning(metadata: Json, old: Json, now: datetime) -> datetime | None:
    """The start of the time to Ready for a generation that is new to this process; None if it is unknown."""
    if not old:
        return moment(metadata["creationTimestamp"])
    if old.get("observedGeneration") == metadata["generation"]:
        return None  # a former leader began with it
    return now


def is_ready(status: Json) -> bool:
    """Whether the condition Ready is True."""
    return any(c["type"] == "Ready" and c["status"] == "True" for c in status.get("conditions") or ())


class Failures:
    """Since when the writes of each V4Deployment have failed without a break."""

    def __init__(self) -> None:
        self._since: dict[Key, datetime] = {}

    def look(self, key: Key, errors: Sequence[Failure], now: datetime) -> bool:
        """Records the errors of a reconcile. Returns whether every reconcile has failed for 60 s or longer."""
        if not errors:
            self.forget(key)
            return False
        return now - self._since.setdefault(key, now) >= _PATIENCE

    def forget(self, key: Key) -> None:
        """Drops a V4Deployment that is gone or being deleted, or whose objects were all written."""
        self._since.pop(key, None)
