"""numba's compiler, and the folder in which compiled operators are kept.

numba caches compiled operators on disk, in a folder that must be writable. A container image, whose root file system is
read-only, has them in the folder that V4SERVE_COMPILED names; they are copied once to NUMBA_CACHE_DIR. numba itself
checks which of them were compiled for this processor, version of numba and source, and compiles the others.
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
    """Return a decorator that compiles a loop at its first use.

    Compiled loops are cached on disk if numba finds a writable folder.
    """
    _copy_from_image()

    def compiled(function: F) -> F:
        jit: Any = partial(njit, nogil=True, error_model="numpy", fastmath=fastmath)
        try:
            fast: F = jit(cache=True)(function)
        except RuntimeError:  # numba: "no locator available", which means that it has no folder for its cache
            fast = jit()(function)
        return fast

    return compiled


@cache
def _copy_from_image() -> None:
    source, target = os.environ.get("V4SERVE_COMPILED"), os.environ.get("NUMBA_CACHE_DIR")
    if source and target:
        copy_compiled(Path(source), Path(target))


def copy_compiled(source: Path, target: Path) -> None:
    """Copy the folder `source` to `target` unless `target` exists.

    The copy appears at once and complete, even if several processes make it. If it fails, a warning is logged, and the
    operators are compiled, which makes the start slower.
    """
    if target.exists():
        return
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as folder:
            copy = Path(folder) / target.name
            shutil.copytree(source, copy)
            copy.rename(target)
    except OSError as error:
        if not target.exists():
            log.warning("cannot copy the image's compiled operators, so they are compiled again: %s", error)
