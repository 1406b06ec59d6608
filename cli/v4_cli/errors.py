"""The errors of the command line, and the exit code that each of all errors ends a command with.

    V4Error (v4_core)            1
    ├── ConfigError (v4_core)    2, like a wrong flag
    ├── DeploymentError          1: a process without which the deployment cannot serve has ended or never began
    ├── FetchError               1: a checkpoint could not be brought whole
    └── Unreachable              1: no router answers as one at an address

Every one of them is one line `error: ...` on stderr. What is not a V4Error is a bug, and shows its traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from v4_core.errors import ConfigError, V4Error

OK, FAILURE, USAGE = 0, 1, 2


class DeploymentError(V4Error):
    """A local deployment that cannot serve."""


class FetchError(V4Error):
    """A checkpoint that could not be brought whole; what has arrived is kept for the next try."""


class Unreachable(V4Error):
    """No router answers at an address; the reason apart from what to do about it."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        super().__init__(f"no v4serve router answers at {url}: {reason}; {remedy}")
        self.reason = reason


def exit_code(error: V4Error) -> int:
    """What the process ends with."""
    return USAGE if isinstance(error, ConfigError) else FAILURE


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Turns a missing third-party package into the extra that brings it; wraps a command's late imports."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("v4_"):
            raise
        raise ConfigError(
            f"this command needs the package {error.name.partition('.')[0]!r}: "
            f"run python -m pip install -e '.[{extra}]' in v4serve's folder"
        ) from error
