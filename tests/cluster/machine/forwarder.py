"""TCP from this machine's loopback into a network namespace: sockets that listen are made outside, others inside."""

import asyncio
import socket
import struct
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

from tests.cluster.machine.sandbox import inside

T = TypeVar("T")

_CHUNK_BYTES = 256 * 1024
_RESET_WHEN_CLOSED = struct.pack("ii", 1, 0)


class Forwarder:
    """Any number of forwarded ports, served by one thread."""

    def __init__(self, network: int) -> None:
        """`network` is the descriptor of the namespace; it stays the caller's."""
        self._network = network
        self._servers: dict[int, asyncio.Server] = {}
        self._connections: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="forwarder")
        self._thread.start()

    def open(self, host: str, port: int) -> int:
        """Port on 127.0.0.1 each connection to which becomes one to host:port inside the namespace."""
        return self._call(self._listen(host, port))

    def shut(self, port: int) -> None:
        """Take no more connections on that port; those that were taken go on."""
        self._loop.call_soon_threadsafe(self._servers.pop(port).close)

    def close(self) -> None:
        """End every connection and the thread."""
        self._call(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def _listen(self, host: str, port: int) -> int:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._connect(host, port, reader, writer))
            self._connections.add(task)
            task.add_done_callback(self._connections.discard)

        server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=_CHUNK_BYTES)
        local: int = server.sockets[0].getsockname()[1]
        self._servers[local] = server
        return local

    async def _connect(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer]
        try:
            far_reader, far_writer = await self._reach(host, port)
            ends.append(far_writer)
            await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
            for end in ends:
                end.close()
                await end.wait_closed()
        except (OSError, asyncio.CancelledError):
            for end in ends:
                _reset(end)  # as the one side was refused or reset, so the other is

    async def _reach(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        with inside(self._network):
            there = socket.socket()
        there.setblocking(False)
        try:
            await self._loop.sock_connect(there, (host, port))
        except BaseException:
            there.close()
            raise
        return await asyncio.open_connection(sock=there, limit=_CHUNK_BYTES)

    async def _end(self) -> None:
        for server in self._servers.values():
            server.close()
        tasks = tuple(self._connections)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _reset(writer: asyncio.StreamWriter) -> None:
    if not writer.transport.is_closing():
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_WHEN_CLOSED)
    writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end of `reader`, then say that end to `writer`. Raises OSError."""
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    if writer.can_write_eof():
        writer.write_eof()
    await writer.drain()
