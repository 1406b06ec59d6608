"""Where the `v4serve` command begins: listens for SIGTERM before anything that takes time is imported.

The first process of a container gets no signal that it does not listen for, and a stop that comes while it still
imports its libraries would be lost: it would go on until it is killed at the end of its grace period.
"""

import os
import signal
from types import FrameType

_TERMINATED = 128 + signal.SIGTERM  # exit code, as shells have it


def main() -> None:
    """Run the command. Until it listens itself, SIGTERM ends the process at once, as it would anywhere else."""
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, _end)
    from v4_cli.main import main as run  # noqa: PLC0415  takes a second

    run()


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(_TERMINATED)
