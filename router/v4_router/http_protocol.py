"""Uvicorn's HTTP/1.1 protocol with limits on the size of the headers and on the time in which they arrive."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_BYTES = 64 << 10  # limit on method, path and headers together, and on a body's chunk headers in a row
_HEAD_SECONDS = 30.0  # for method, path and headers to arrive, from the connection or from their first byte


class BoundedHttp(HttpToolsProtocol):
    """One connection. Headers that are too long get a 400, headers that are too slow get none; both close it."""

    _unread = 0  # bytes received since headers or a part of a body were last passed to the application
    _timer: asyncio.TimerHandle | None = None  # closes the connection if headers do not arrive in time

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Starts the timer for the first request."""
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops the timer."""
        super().connection_lost(exc)
        self._stop_timer()

    def data_received(self, data: bytes) -> None:
        """Answers 400 if the headers received so far are too long."""
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers are longer than {MOST_BYTES >> 10} KiB.")

    def on_message_begin(self) -> None:
        """Starts the timer at the first byte of a request."""
        super().on_message_begin()
        self._start_timer()

    def on_headers_complete(self) -> None:
        """Stops the timer."""
        self._unread = 0
        self._stop_timer()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Passes on a part of the body, whose size is limited by the application."""
        self._unread = 0
        super().on_body(body)

    def _start_timer(self) -> None:
        self._stop_timer()
        self._timer = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
