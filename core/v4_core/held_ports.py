"""Ports that a parent holds for its children, so that nobody else gets one before the child listens on it.

The parent binds port 0 and keeps the socket without listening; the child, whose settings name the port, binds it once
more and listens. Sockets share a port if all of them ask for it (SO_REUSEPORT) and belong to one user. A child asks for
the ports that its environment names and for no other, so that any other port that is taken stays an error. A held port
is given to no outgoing connection either, and a connection to it is refused as long as nobody listens.
"""

import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager

_VARIABLE = "V4SERVE_HELD_PORTS"


@contextmanager
def held_ports(host: str, count: int) -> Iterator[list[int]]:
    """Hold so many free ports of a host within the context. Raises OSError."""
    with ExitStack() as stack:
        ports = []
        for _ in range(count):
            one = stack.enter_context(socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET))
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            one.bind((host, 0))
            ports.append(int(one.getsockname()[1]))
        yield ports


def held_for(ports: Iterable[int]) -> Mapping[str, str]:
    """What a child's environment says of the ports that are held for it."""
    return {_VARIABLE: ",".join(map(str, ports))}


def is_held(port: int) -> bool:
    """Whether this process's parent holds the port for it."""
    return str(port) in os.environ.get(_VARIABLE, "").split(",")
