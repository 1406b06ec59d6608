"""The worker's errors.

V4Error (core)
└── WorkerError    this process cannot continue; other workers take over its requests
    └── Stopped    a signal stopped it before it served; not a failure
"""

from v4_core.errors import V4Error


class WorkerError(V4Error):
    """This process cannot continue."""


class Stopped(WorkerError):
    """A signal stopped this process before it served."""
