"""Reloads a file when it changes, as mounted Secrets and ConfigMaps do. Invalid content is logged and ignored."""

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
    """The parsed content of a file.

    `current` changes only inside `reload_if_changed`, or on the event loop that runs `follow`.
    """

    def __init__(self, path: Path, read: Callable[[Path], T], changed: Callable[[T], None] = lambda _: None) -> None:
        """Reads the file. `read` parses it and raises ConfigError if it is invalid, which this passes on.

        `changed` is called with every later content.
        """
        self._path, self._read, self._changed = path, read, changed
        self._version = _version(path)  # taken before reading, so that a change in between is read again
        self.current = read(path)

    async def follow(self) -> None:
        """Checks the file every second until cancelled. The file is read in a thread, beside the event loop."""
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self._changed_since():
                self._accept(await asyncio.to_thread(self._parse))

    def reload_if_changed(self) -> None:
        """Reads the file again if it has changed."""
        if self._changed_since():
            self._accept(self._parse())

    def _changed_since(self) -> bool:
        before, self._version = self._version, _version(self._path)
        return self._version != before

    def _parse(self) -> T | ConfigError:
        try:
            return self._read(self._path)
        except ConfigError as error:
            return error

    def _accept(self, outcome: T | ConfigError) -> None:
        if isinstance(outcome, ConfigError):
            log.error("%s; the former content stays in effect", outcome)
            return
        self.current = outcome
        log.info("reloaded %s", self._path)
        self._changed(outcome)


def _version(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file, or the target of a link, is written, replaced or made readable. None if it is absent."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size
