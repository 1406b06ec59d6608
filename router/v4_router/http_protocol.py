"""HTTP/1.1 as uvicorn speaks it, with bounds on what it would keep, and wait for, before any application sees it."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_BYTES = 64 << 10  # of method, path and headers, and of what a body's encoding may add
_HEAD_SECONDS = 30.0  # for method, path and headers, from the connection on or from their first byte


class BoundedHttp(HttpToolsProtocol):
    """One connection. It is closed when a request's headers are too long, after a word on it, or too slow."""

    _unread = 0  # bytes since there was something to pass on
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A request is to come."""
        super().connection_made(transport)
        self._expect()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is to come any more."""
        super().connection_lost(exc)
        self._expect_no_more()

    def data_received(self, data: bytes) -> None:
        """Some of a request."""
        self._unread += len(data)
        super().data_received(data)
        if self._unread > MOST_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers are longer than {MOST_BYTES >> 10} KiB.")

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._expect()

    def on_headers_complete(self) -> None:
        """All but the body is there."""
        self._unread = 0
        self._expect_no_more()
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Some of the body, whose size is the application's to bound."""
        self._unread = 0
        super().on_body(body)

    def _expect(self) -> None:
        self._expect_no_more()
        self._late = self.loop.call_later(_HEAD_SECONDS, self.transport.close)

    def _expect_no_more(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None
