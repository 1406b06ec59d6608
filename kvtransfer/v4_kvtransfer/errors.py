"""The errors of a transfer. After any of them nothing more is written to the receiver's memory.

V4Error
└── TransferError            the cache was not moved; place the request again
    ├── LeaseGone            the lease ended, or was never held by that process
    ├── StaleAttempt         a newer attempt of the request took over
    ├── FingerprintMismatch  the two workers do not run the same weights, config, layout or engine
    ├── PullMismatch         the two sides disagree about what is to be pulled
    ├── FrameError           the bytes that arrived cannot be trusted
    │   ├── CorruptFrame     one frame is damaged or not a frame
    │   └── BrokenStream     sound frames that are lost, repeated, reordered, too many or too few
    ├── TokenRefused         the two workers do not share one component token
    ├── Stalled              the peer is connected and silent, or does not read
    └── PeerLost             the connection or the peer's process is gone
"""

from v4_core.errors import V4Error


class TransferError(V4Error):
    """The cache was not moved."""


class LeaseGone(TransferError):
    """The lease is not held."""


class StaleAttempt(TransferError):
    """A newer attempt of the request took over."""


class FingerprintMismatch(TransferError):
    """The two workers do not run the same weights, config, layout or engine."""


class PullMismatch(TransferError):
    """The two sides disagree about what is to be pulled."""


class FrameError(TransferError):
    """The bytes that arrived cannot be trusted."""


class CorruptFrame(FrameError):
    """One frame is damaged or not a frame."""


class BrokenStream(FrameError):
    """Sound frames that are lost, repeated, reordered, too many or too few."""


class TokenRefused(TransferError):
    """The two workers do not share one component token."""


class Stalled(TransferError):
    """The peer is connected and silent, or does not read."""


class PeerLost(TransferError):
    """The connection or the peer's process is gone."""
