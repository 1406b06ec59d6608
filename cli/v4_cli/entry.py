"""The entry point of the `v4serve` command: handles SIGTERM before it imports anything slow.

The first process of a container does not receive SIGTERM unless it has installed a handler. Without this module, a
SIGTERM during the imports would be lost, and the process would run until it is killed at the end of its grace period.
"""

import os
import signal
from types import FrameType

_TERMINATED = 128 + signal.SIGTERM  # the exit code that shells report


def main() -> None:
    """Runs the command. As process 1, SIGTERM ends it at once until the command installs its own handler."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
    from v4_cli.main import main as run  # noqa: PLC0415  this import takes about a second

    run()


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(_TERMINATED)
