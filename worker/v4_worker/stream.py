"""Collects what is to be sent to one router: the events since the last message and the latest load."""

import asyncio

from v4_core.v1 import worker_pb2 as pb


class RouterStream:
    """The outgoing side of one Serve stream. All events of an engine step are sent as one message."""

    def __init__(self) -> None:
        self._events: list[pb.Event] = []
        self._load: pb.Load | None = None
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, event: pb.Event) -> None:
        """Add an event to the next message."""
        self._events.append(event)

    def flush(self, load: pb.Load | None = None) -> None:
        """Send the pending events, and the load if it changed."""
        if load is not None and load != self._load:
            self._load = load
            self._wake.set()
        if self._events:
            self._wake.set()

    def close(self) -> None:
        """End the stream after the pending events are sent."""
        self._closed = True
        self._wake.set()

    async def next(self) -> pb.FromWorker | None:
        """Wait for the next message. Returns None at the end of the stream.

        A router that reads slowly gets the events of several steps in one message.
        """
        await self._wake.wait()
        if self._closed and not self._events:
            return None
        if not self._closed:
            self._wake.clear()
        events, self._events = self._events, []
        return pb.FromWorker(events=events, load=self._load)
