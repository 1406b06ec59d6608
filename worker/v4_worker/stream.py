"""What waits to be sent to one router: the events since the last message, and the latest load."""

import asyncio

from v4_core.v1 import worker_pb2 as pb


class RouterStream:
    """Outgoing side of one Serve stream. Events put within one engine step leave as one message."""

    def __init__(self) -> None:
        self._events: list[pb.Event] = []
        self._load: pb.Load | None = None
        self._wake = asyncio.Event()
        self._closed = False

    def put(self, event: pb.Event) -> None:
        """Add an event to the next message."""
        self._events.append(event)

    def flush(self, load: pb.Load | None = None) -> None:
        """Let the message go, if there is anything new in it."""
        if load is not None and load != self._load:
            self._load = load
            self._wake.set()
        if self._events:
            self._wake.set()

    def close(self) -> None:
        """Nothing more will come; what was put is sent before the stream ends."""
        self._closed = True
        self._wake.set()

    async def next(self) -> pb.FromWorker | None:
        """The next message, None at the end; a router that reads slowly gets several steps' events in one."""
        await self._wake.wait()
        if self._closed and not self._events:
            return None
        if not self._closed:
            self._wake.clear()
        events, self._events = self._events, []
        return pb.FromWorker(events=events, load=self._load)
