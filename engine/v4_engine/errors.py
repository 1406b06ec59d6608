"""The engine's errors.

V4Error (core)
├── ConfigError (core)
│   └── WeightsError     a checkpoint whose tensors are not those of its config
└── EngineError
    ├── CapacityError    memory that cannot hold what was asked, ever; the message names the limit
    └── IntegrityError   an invariant of the engine's own books is broken: a bug, never a user's fault
"""

from v4_core.errors import ConfigError, V4Error


class WeightsError(ConfigError):
    """A checkpoint whose tensors are not those of its config."""


class EngineError(V4Error):
    """Root of the engine's own errors."""


class CapacityError(EngineError):
    """Asked for more than this engine can ever hold."""


class IntegrityError(EngineError):
    """The engine's books do not add up."""
