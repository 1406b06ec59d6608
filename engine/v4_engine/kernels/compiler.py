"""numba's compiler and the place of what it compiled. Knows no operator.

numba keeps compiled operators on disk, but only where it can write. An image, whose root file system is read-only,
carries them in the folder that V4SERVE_COMPILED names; they are copied once to NUMBA_CACHE_DIR, which must be writable.
numba itself tells which of them were made for this processor, numba and source, and compiles the others anew.
"""

import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from numba import njit

F = TypeVar("F", bound=Callable[..., None])

log = logging.getLogger(__name__)


def compiler(fastmath: bool | set[str]) -> Callable[[F], F]:
    """A decorator that compiles a loop at its first use, with numba's cache on disk where there is a place for one."""
    _start_from_image()

    def compiled(function: F) -> F:
        jit: Any = partial(njit, nogil=True, error_model="numpy", fastmath=fastmath)
        try:
            fast: F = jit(cache=True)(function)
        except RuntimeError:  # numba's "no locator available"
            fast = jit()(function)
        return fast

    return compiled


@cache
def _start_from_image() -> None:
    carried, place = os.environ.get("V4SERVE_COMPILED"), os.environ.get("NUMBA_CACHE_DIR")
    if carried and place:
        copy_compiled(Path(carried), Path(place))


def copy_compiled(carried: Path, place: Path) -> None:
    """Make `place` a copy of `carried` unless it is there; whole or not at all, also beside others who do the same.

    Where that fails, a warning says that starting takes longer.
    """
    if place.exists():
        return
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as beside:
            whole = Path(beside) / place.name
            shutil.copytree(carried, whole)
            whole.rename(place)
    except OSError as error:
        if not place.exists():
            log.warning("operators are compiled anew, as those of the image cannot be used: %s", error)
