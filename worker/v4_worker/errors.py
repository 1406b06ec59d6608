"""The worker's errors.

V4Error (core)
└── WorkerError    this process cannot go on; others take its requests over
    └── Stopped    it was told to stop before it served; no failure
"""

from v4_core.errors import V4Error


class WorkerError(V4Error):
    """This process cannot go on."""


class Stopped(WorkerError):
    """This process was told to stop before it served."""
