"""Reserves ports for child processes, so that no other process gets a port before the child listens on it.

The parent binds port 0 and keeps the socket without listening. The child, whose settings name the port, binds it again
and listens. Sockets can share a port if all of them set SO_REUSEPORT and belong to the same user. A child sets it only
for ports that its environment names, so any other port that is in use remains an error. The kernel uses a held port for
no outgoing connection, and refuses connections to it until a process listens.
"""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

_VARIABLE = "V4SERVE_HELD_PORTS"


@contextmanager
def held_ports(host: str, count: int) -> Iterator[list[int]]:
    """Holds `count` free ports of a host within the context. Raises OSError."""
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            held = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            held.bind((host, 0))
            ports.append(int(held.getsockname()[1]))
        yield ports


def held_for(ports: Iterable[int]) -> Mapping[str, str]:
    """The environment variable that tells a child which ports are held for it."""
    return {_VARIABLE: ",".join(map(str, ports))}


def is_held(port: int) -> bool:
    """Whether the parent process holds this port for this process."""
    return str(port) in os.environ.get(_VARIABLE, "").split(",")
