"""What can go wrong with a test cluster.

ClusterError            a command or a process of the cluster failed
├── CommandFailed       a command ended with a status other than 0
├── TimedOut            something did not come true in time (waiting.py)
└── PartMissing         this machine cannot run a cluster, or lacks a part: tests skip, with CI=true they fail
"""

from collections.abc import Sequence


class ClusterError(Exception):
    """A command or a process of the cluster failed."""


class CommandFailed(ClusterError):
    """A command ended with a status other than 0."""

    def __init__(self, command: Sequence[str], status: int, output: str) -> None:
        """`output` is what it wrote, of which the message holds the end."""
        super().__init__(f"{' '.join(command)[:400]}: status {status}\n{output[-4000:].strip()}")
        self.status = status
        self.output = output


class PartMissing(ClusterError):
    """This machine cannot run a cluster, or a part of it could not be had."""
