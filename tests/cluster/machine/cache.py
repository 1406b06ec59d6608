"""What outlives a test run: made once, kept outside the clone, found again by the content it was made from.

An entry is made in a folder beside its place and moved there when complete, so that one that exists is whole.
"""

import fcntl
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from tests.cluster.machine.progress import step


def folder() -> Path:
    """Where everything of the test cluster is kept: in $V4SERVE_CACHE, or else in the user's cache."""
    root = os.environ.get("V4SERVE_CACHE") or Path.home() / ".cache" / "v4serve"
    path = Path(root).resolve() / "cluster"
    path.mkdir(parents=True, exist_ok=True)
    return path


def digest(*parts: bytes | str) -> str:
    """Short hash of some content, for the name of an entry."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(hashlib.sha256(part.encode() if isinstance(part, str) else part).digest())
    return whole.hexdigest()[:16]


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the lock of that name among all processes that use this cache."""
    with (folder() / f"{name}.lock").open("w") as file:
        take(file, name)
        yield


def take(file: TextIO, name: str) -> None:
    """Lock the file; says so where another process, or another thread, has it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        with step(f"waiting for another to be done with {name}"):
            fcntl.flock(file, fcntl.LOCK_EX)


def entry(name: str, key: str, make: Callable[[Path, Path], None]) -> Path:
    """The folder that `make(into, work)` fills, from the cache if it is there; `work` is scratch space.

    Two processes never make one at once, and what a killed one has left is removed.
    """
    place = folder() / f"{name}-{key}"
    if place.exists():
        return place
    with lock(name):
        if not place.exists():
            partial, work = folder() / f"{name}.partial", folder() / f"{name}.work"
            for fresh in (partial, work):
                shutil.rmtree(fresh, ignore_errors=True)
                fresh.mkdir()
            make(partial, work)
            partial.rename(place)
            shutil.rmtree(work)
    return place
