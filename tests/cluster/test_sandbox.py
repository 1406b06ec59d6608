"""Where the test cluster runs: connections into it, and that nothing of it stays on this machine, however it ends."""

import gc
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.cluster.conftest import skip_or_fail
from tests.cluster.machine import cache
from tests.cluster.machine.api import ClosingSocket
from tests.cluster.machine.cluster import Cluster
from tests.cluster.machine.forwarder import Forwarder
from tests.cluster.machine.local_control_plane import ControlPlane
from tests.cluster.machine.sandbox import Sandbox, inside, remove_abandoned
from tests.cluster.machine.waiting import wait

pytestmark = pytest.mark.cluster

Treatment = Callable[[socket.socket], None]

_DEADLINE_SECONDS = 60  # ten times the usual


_OTHER_RUN = """
import sys
from tests.cluster.machine.local import LocalCluster
from tests.cluster.test_machine import WEB
cluster = LocalCluster()
cluster.kubectl("apply", "--filename", "-", input=WEB)
cluster.kubectl("rollout", "status", "deployment/web", "--timeout=300s")
print(cluster.kubeconfig.parent, flush=True)
sys.stdin.read()
"""
_MARK = "V4SERVE_TEST_MARK"


def _traces(mark: str, name: str) -> dict[str, list[str]]:
    """What is on this machine of the cluster whose daemons have `mark` in their environment."""
    processes = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"{_MARK}={mark}".encode() in environment.read_bytes():
                processes.append(environment.parent.name)
        except OSError:
            continue  # ended meanwhile
    groups = [path for path in Path("/sys/fs/cgroup").glob(f"**/{name}/**/cgroup.procs") if path.read_text()]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if name in line]
    return {"processes": processes, "containers": [str(path) for path in groups], "mounts": mounts}


def _network() -> tuple[object, ...]:
    rules = subprocess.run(["iptables-save"], capture_output=True, text=True, check=True).stdout
    namespaces = Path("/run/netns")
    return socket.if_nameindex(), rules, sorted(os.listdir(namespaces)) if namespaces.exists() else []


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    """One without daemons; the test may close it."""
    if os.geteuid():
        skip_or_fail("needs root: namespaces are made")
    made = Sandbox(cache.folder() / "run")
    yield made
    if made.folder.exists():
        made.close()


@pytest.fixture
def forwarded(sandbox: Sandbox) -> Iterator[Callable[[Treatment], socket.socket]]:
    """A function: the connection, by way of the forwarder, to a server in a sandbox that treats it as told."""
    with ExitStack() as stack:
        sandbox.run("ip", "link", "set", "lo", "up")
        forwarder = Forwarder(sandbox.network)
        stack.callback(forwarder.close)
        with inside(sandbox.network):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def connect(treat: Treatment) -> socket.socket:
            def serve() -> None:
                with listener.accept()[0] as connection:
                    treat(connection)

            server = threading.Thread(target=serve)
            server.start()
            stack.callback(server.join)
            port = forwarder.open(*listener.getsockname())
            return stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=_DEADLINE_SECONDS))

        yield connect


def _all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_a_forwarded_connection_carries_everything_to_the_last_byte(
    forwarded: Callable[[Treatment], socket.socket],
) -> None:
    """Also what is answered after the client has said all that it will say."""
    content = os.urandom(3_000_000)
    connection = forwarded(lambda server: server.sendall(_all(server)[::-1]))
    connection.sendall(content)
    connection.shutdown(socket.SHUT_WR)
    assert _all(connection) == content[::-1]


def test_a_reset_reaches_the_other_side(
    forwarded: Callable[[Treatment], socket.socket],
) -> None:
    def reset(server: socket.socket) -> None:
        server.recv(1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    connection = forwarded(reset)
    connection.sendall(b"x")
    with pytest.raises(ConnectionResetError):
        connection.recv(1)


def test_a_connection_that_is_reset_before_its_handshake_is_closed() -> None:
    """As happens while the API server starts. A socket left open would be a warning, and that an error here."""
    context = ssl.create_default_context()
    context.sslsocket_class = ClosingSocket
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        far.close()
        select.select([near], [], [], _DEADLINE_SECONDS)
        with pytest.raises(ConnectionResetError):
            context.wrap_socket(near, server_hostname="localhost")
    gc.collect()


def test_nothing_stays_of_a_sandbox(sandbox: Sandbox) -> None:
    """Not even of a process that left its parent, its session and ignores signals."""
    network = _network()
    mark = os.urandom(8).hex()
    orphan = "trap '' TERM HUP; echo started; while :; do sleep 60; done"
    parent = sandbox.spawn("parent", "env", f"{_MARK}={mark}", "sh", "-c", f'setsid sh -c "{orphan}" & wait')
    log = sandbox.folder / "log" / "parent"
    wait(lambda: "started" in log.read_text(), _DEADLINE_SECONDS, "the orphan runs")
    parent.signal(signal.SIGKILL)
    parent.join()
    sandbox.run("ip", "link", "add", "left0", "type", "bridge")
    assert _traces(mark, sandbox.name)["processes"]
    sandbox.close()
    assert _traces(mark, sandbox.name) == {"processes": [], "containers": [], "mounts": []}
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{sandbox.name}"))
    assert _network() == network
    assert not sandbox.folder.exists()


def test_nothing_stays_of_a_killed_run(control_plane: Cluster) -> None:
    """Killed, its processes, mounts and network end with it; the next run removes its files and control groups."""
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("only a cluster on this machine can leave something on it")
    network = _network()
    environment = os.environ | {_MARK: (mark := os.urandom(8).hex())}
    command = [sys.executable, "-c", _OTHER_RUN]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        try:
            assert run.stdout
            folder = Path(run.stdout.readline().strip())
            assert len(_traces(mark, folder.name)["processes"]) > 8  # the daemons
            assert len(_traces(mark, folder.name)["containers"]) > 0
        finally:
            run.kill()
    nothing: dict[str, list[str]] = {"processes": [], "containers": [], "mounts": []}
    wait(lambda: _traces(mark, folder.name) == nothing, _DEADLINE_SECONDS, "nothing runs any more")
    assert _network() == network
    assert folder.exists()
    remove_abandoned(cache.folder() / "run")
    assert not folder.exists()
    assert not list(Path("/sys/fs/cgroup").glob(f"**/{folder.name}"))
