"""The errors of a transfer. After any of them, nothing more is written to the receiver's memory.

V4Error
└── TransferError            the cache was not transferred; the request must be placed again
    ├── LeaseGone            the lease has ended, or that process never held it
    ├── StaleAttempt         a newer attempt of the request took over
    ├── FingerprintMismatch  the two workers run different weights, configs, layouts or engines
    ├── PullMismatch         the two sides disagree about the content of the pull
    ├── FrameError           the received bytes cannot be trusted
    │   ├── CorruptFrame     one frame is damaged or is not a frame
    │   └── BrokenStream     valid frames are lost, repeated, reordered, too many or too few
    ├── TokenRefused         the two workers have different component tokens
    ├── Stalled              the peer is connected but sends nothing or does not read
    └── PeerLost             the connection or the peer's process is gone
"""

from v4_core.errors import V4Error


class TransferError(V4Error):
    """The cache was not transferred."""


class LeaseGone(TransferError):
    """The lease is not held."""


class StaleAttempt(TransferError):
    """A newer attempt of the request took over."""


class FingerprintMismatch(TransferError):
    """The two workers run different weights, configs, layouts or engines."""


class PullMismatch(TransferError):
    """The two sides disagree about the content of the pull."""


class FrameError(TransferError):
    """The received bytes cannot be trusted."""


class CorruptFrame(FrameError):
    """One frame is damaged or is not a frame."""


class BrokenStream(FrameError):
    """Valid frames are lost, repeated, reordered, too many or too few."""


class TokenRefused(TransferError):
    """The two workers have different component tokens."""


class Stalled(TransferError):
    """The peer is connected but sends nothing or does not read."""


class PeerLost(TransferError):
    """The connection or the peer's process is gone."""
