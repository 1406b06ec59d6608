"""The engine's errors.

V4Error (core)
├── ConfigError (core)
│   └── WeightsError     a checkpoint whose tensors do not fit its config
└── EngineError
    ├── CapacityError    a request that the engine's memory can never hold; the message names the limit
    └── IntegrityError   the engine's bookkeeping is inconsistent: always a bug, never a user's mistake
"""

from v4_core.errors import ConfigError, V4Error


class WeightsError(ConfigError):
    """A checkpoint's tensors do not fit its config."""


class EngineError(V4Error):
    """Base of the engine's own errors."""


class CapacityError(EngineError):
    """A request needs more memory than the engine has."""


class IntegrityError(EngineError):
    """The engine's bookkeeping is inconsistent."""
