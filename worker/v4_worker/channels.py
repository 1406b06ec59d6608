"""Keeps gRPC channels to other workers open. Knows no service."""

import asyncio
from collections.abc import Callable

import grpc.aio

_MAX_CHANNELS = 64  # kept open, besides those that legs use
# A dead peer is detected 15 s after its last sign of life. gRPC never starts the timer of keepalive_timeout (observed
# in 1.85), so ping_timeout is what ends the connection.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
)
_CHANNEL_OPTIONS = (
    *KEEPALIVE,
    ("grpc.enable_http_proxy", 0),  # workers connect to each other directly
)


class Channels:
    """One channel per address. Closes the least recently used ones that no leg uses."""

    def __init__(self, in_use: Callable[[str], bool]) -> None:
        """`in_use` says whether a leg still uses the channel to an address."""
        self._in_use = in_use
        self._channels: dict[str, grpc.aio.Channel] = {}  # the most recently used is last
        self._closing: list[asyncio.Future[None]] = []

    def __len__(self) -> int:
        return len(self._channels)

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to the worker at `address`."""
        channel = self._channels.pop(address, None) or grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._channels[address] = channel
        for old in list(self._channels)[:-_MAX_CHANNELS]:
            if not self._in_use(old):
                self._closing.append(asyncio.ensure_future(self._channels.pop(old).close(None)))
        self._closing = [task for task in self._closing if not task.done()]
        return channel

    async def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            await channel.close(None)
