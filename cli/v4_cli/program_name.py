"""The name by which a user starts this program, for the commands in messages: `make` does not install it on PATH."""

import os
import shlex
import shutil
import sys
from pathlib import Path

_NAME = "v4serve"


def program_name() -> str:
    """Returns the first word of a shell command that starts this program from the current folder."""
    return shell_name(sys.argv[0], shutil.which(_NAME), Path.cwd())


def shell_name(started: str, on_path: str | None, folder: Path) -> str:
    """Returns the shortest name that starts a program from a folder.

    `started`: the path by which the program was started. `on_path`: the v4serve that the shell finds on PATH, if any.
    """
    path = folder / started
    if path.name != _NAME or (on_path is not None and path.resolve() == (folder / on_path).resolve()):
        return _NAME
    relative = os.path.relpath(path, folder)
    near = relative if os.sep in relative else os.path.join(os.curdir, relative)
    return shlex.quote(min(near, os.path.normpath(path), key=len))
