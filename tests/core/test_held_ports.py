import socket
import subprocess
import sys

import pytest

from v4_core.held_ports import held_for, held_ports, is_held

HOST = "127.0.0.1"


def test_nobody_else_gets_a_held_port_and_the_child_does() -> None:
    with held_ports(HOST, 2) as ports:
        assert len(set(ports)) == 2
        for port in ports:
            with pytest.raises(OSError, match="in use"):
                socket.create_server((HOST, port))
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((HOST, port))
            with socket.create_server((HOST, port), reuse_port=True), socket.create_connection((HOST, port)):
                pass
    for port in ports:
        socket.create_server((HOST, port)).close()


def test_no_outgoing_connection_has_a_held_port() -> None:
    """Else one to a worker that does not listen yet could be a connection to itself."""
    with held_ports(HOST, 1) as (port,), socket.create_server((HOST, 0)) as server, socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            client.bind((HOST, port))
        client.connect(server.getsockname())
        assert client.getsockname()[1] != port


def test_a_process_knows_the_ports_that_are_held_for_it_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_held(0)
    assert not is_held(80)
    for name, value in held_for([8000, 9000]).items():
        monkeypatch.setenv(name, value)
    assert is_held(8000)
    assert is_held(9000)
    assert not is_held(800)
    assert not is_held(0)
    said = "from v4_core.held_ports import is_held; print(is_held(9000), is_held(9001))"
    child = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert child.stdout == "True False\n"
