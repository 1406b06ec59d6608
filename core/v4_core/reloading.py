"""A file that is read again when it changes, as mounted Secrets and ConfigMaps do. Broken content changes nothing."""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from v4_core.errors import ConfigError

log = logging.getLogger(__name__)

T = TypeVar("T")

_POLL_SECONDS = 1.0


class Reloaded(Generic[T]):
    """What a file says; `current` changes only in `look`, or between two turns of the loop that runs `follow`."""

    def __init__(self, path: Path, read: Callable[[Path], T], changed: Callable[[T], None] = lambda _: None) -> None:
        """`read` raises ConfigError on what cannot be used, as this does; `changed` hears of every later content."""
        self._path, self._read, self._changed = path, read, changed
        self._version = _version(path)  # ahead of reading: a change between the two is read again
        self.current = read(path)

    async def follow(self) -> None:
        """Look at the file every second, until cancelled. A long file is read beside the event loop."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self._is_another():
                self._take(await asyncio.to_thread(self._outcome))

    def look(self) -> None:
        """Read the file again if it is another one now."""
        if self._is_another():
            self._take(self._outcome())

    def _is_another(self) -> bool:
        before, self._version = self._version, _version(self._path)
        return self._version != before

    def _outcome(self) -> T | ConfigError:
        try:
            return self._read(self._path)
        except ConfigError as error:
            return error

    def _take(self, outcome: T | ConfigError) -> None:
        if isinstance(outcome, ConfigError):
            log.error("%s; what it said before holds on", outcome)
            return
        self.current = outcome
        log.info("%s was read again", self._path)
        self._changed(outcome)


def _version(path: Path) -> tuple[int, int, int] | None:
    """Differs when the file was written, replaced or made readable, behind a link too; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size
