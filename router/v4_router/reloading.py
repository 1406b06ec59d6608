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
    """What a file says; `current` changes only between two turns of the event loop."""

    def __init__(self, path: Path, read: Callable[[Path], T], changed: Callable[[T], None] = lambda _: None) -> None:
        """`read` raises ConfigError on what cannot be used, as this does; `changed` hears of every later content."""
        self._path, self._read, self._changed = path, read, changed
        self._version = _version(path)  # ahead of reading: a change between the two is read again
        self.current = read(path)

    async def follow(self) -> None:
        """Look at the file every second, until cancelled."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            self.look()

    def look(self) -> None:
        """Read the file again if it is another one now."""
        version = _version(self._path)
        if version == self._version:
            return
        self._version = version
        try:
            self.current = self._read(self._path)
        except ConfigError as error:
            log.error("%s; what it said before holds on", error)
        else:
            log.info("%s was read again", self._path)
            self._changed(self.current)


def _version(path: Path) -> tuple[int, int, int] | None:
    """Differs when the file was written or replaced, behind a symbolic link too; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
