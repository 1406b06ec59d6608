"""The errors of the command line, and the exit code with which each error ends a command.

    V4Error (v4_core)            1
    ├── ConfigError (v4_core)    2, the same as for a wrong flag
    ├── DeploymentError          1: a process that the deployment cannot serve without has ended or did not start
    ├── FetchError               1: a checkpoint could not be downloaded completely
    └── Unreachable              1: no v4serve router answers at an address

Each is printed as one line `error: ...` on stderr. Any other exception is a bug and shows its traceback.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from v4_core.errors import ConfigError, V4Error

OK, FAILURE, USAGE = 0, 1, 2


class DeploymentError(V4Error):
    """A local deployment cannot serve."""


class FetchError(V4Error):
    """A checkpoint could not be downloaded completely. The files that have arrived are kept for the next run."""


class Unreachable(V4Error):
    """No v4serve router answers at an address."""

    def __init__(self, url: str, reason: str, remedy: str) -> None:
        """`reason`: why, also kept as an attribute. `remedy`: what the user can do about it."""
        super().__init__(f"no v4serve router answers at {url}: {reason}; {remedy}")
        self.reason = reason


def exit_code(error: V4Error) -> int:
    """Returns the exit code of a command that this error ended."""
    return USAGE if isinstance(error, ConfigError) else FAILURE


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Raises a missing third-party package as a ConfigError that names the extra to install.

    Wraps the imports that a command makes when it runs.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("v4_"):
            raise
        raise ConfigError(
            f"this command needs the package {error.name.partition('.')[0]!r}: "
            f"run python -m pip install -e '.[{extra}]' in v4serve's source folder"
        ) from error
