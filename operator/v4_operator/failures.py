"""Since when the writes for a V4Deployment have failed without a break. Pure; forgets all when the process ends.

An error that should pass is not worth a word in status, unless it does not pass.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from v4_operator.cache import Key
from v4_operator.errors import OperatorError

_PATIENCE = timedelta(seconds=60)  # an election of etcd's, a renewed certificate or a restarted server take less


class Failures:
    """Of all V4Deployments."""

    def __init__(self) -> None:
        self._since: dict[Key, datetime] = {}

    def look(self, key: Key, errors: Sequence[OperatorError], now: datetime) -> bool:
        """Take in what a look could not write; whether every look has failed for longer than such errors last."""
        if not errors:
            self.forget(key)
            return False
        return now - self._since.setdefault(key, now) >= _PATIENCE

    def forget(self, key: Key) -> None:
        """The V4Deployment goes, or is gone, or all was written."""
        self._since.pop(key, None)
