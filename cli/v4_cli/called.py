"""What users call this program by, for the commands that it tells them: what `make` installed is not on PATH."""

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "v4serve"


def v4serve() -> str:
    """The word to begin a command with that starts this very program from the present folder."""
    return called(sys.argv[0], shutil.which(_NAME), Path.cwd())


def called(started: str, found: str | None, folder: Path) -> str:
    """Of the program that was started as `started`, where `found` is what the shell would start as v4serve."""
    path = folder / started
    if path.name != _NAME or (found is not None and path.resolve() == (folder / found).resolve()):
        return _NAME
    relative = os.path.relpath(path, folder)
    near = relative if os.sep in relative else os.path.join(os.curdir, relative)
    return shlex.quote(min(near, os.path.normpath(path), key=len))
