"""Namespaces of their own for a set of daemons: processes, mounts, network. Knows nothing of Kubernetes.

Inside, /run is the sandbox's folder and what is written under /var goes to that folder too, so that no daemon touches
the machine's own files. The first process of the namespaces ends when this process does, and the kernel then ends all
others, containers included, and takes mounts and network devices with them: a test run that is killed leaves nothing
running. What is left on disk, the folder and the control groups, is removed by the next one (remove_abandoned).
"""

import ctypes
import fcntl
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.cluster.machine.commands import run
from tests.cluster.machine.errors import ClusterError

_CGROUPS = Path("/sys/fs/cgroup")
_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)
_END_SECONDS = 20
_POLL_SECONDS = 0.02

# First process of the namespaces: reaps orphans by ignoring their end, and ends with the process behind the descriptor.
_FIRST = """
import select, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
print(flush=True)
select.select([int(sys.argv[1])], [], [])
"""


class Daemon:
    """One running process of a sandbox."""

    def __init__(self, name: str, process: subprocess.Popen[bytes]) -> None:
        """`process` is the one that entered the namespaces for it; it ends when the daemon does."""
        self.name = name
        self._process = process
        self._pid = _only_child(process)

    @property
    def running(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, if it runs."""
        if self.running:
            os.kill(self._pid, number)

    def stop(self, seconds: float) -> None:
        """Ask it to end, and after that many seconds kill it."""
        self.signal(signal.SIGTERM)
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.signal(signal.SIGKILL)
            self._process.wait()

    def join(self) -> None:
        """Wait for its end."""
        self._process.wait()


class Sandbox:
    """The namespaces, with the folder and the control group that belong to them."""

    def __init__(self, parent: Path) -> None:
        """Make the namespaces and, in `parent`, their folder. Raises ClusterError, OSError."""
        self.name = f"v4serve-{secrets.token_hex(4)}"
        self.folder = parent / self.name
        for part in ("log", "var", "var.work"):
            (self.folder / part).mkdir(parents=True)
        self._lock = _try_lock(self.folder)
        self._daemons: list[Daemon] = []
        self._unshare, self._first, self.network = self._make_namespaces()
        try:
            self._mount()
            for hierarchy in _hierarchies():
                (hierarchy / self.name).mkdir()
        except BaseException:
            self.close()
            raise

    def _make_namespaces(self) -> tuple[subprocess.Popen[bytes], int, int]:
        """The process that waits for the first one, the first one's id, a descriptor of its network namespace."""
        owner = os.pidfd_open(os.getpid())
        try:
            command = ["unshare", "--fork", "--kill-child", "--pid", "--mount-proc", "--mount", "--net", "--ipc"]
            command += [sys.executable, "-I", "-S", "-c", _FIRST, str(owner)]
            with (self.folder / "log" / "unshare").open("wb") as log:
                unshare = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    pass_fds=[owner],
                    start_new_session=True,
                )
        finally:
            os.close(owner)
        assert unshare.stdout
        with unshare.stdout as started:
            if not started.readline():
                unshare.wait()
                raise ClusterError(f"unshare: {(self.folder / 'log' / 'unshare').read_text()}")
        first = _only_child(unshare)
        return unshare, first, os.open(f"/proc/{first}/ns/net", os.O_RDONLY | os.O_CLOEXEC)

    def _mount(self) -> None:
        self.run("mount", "--make-rshared", "/")
        self.run("mount", "--bind", self.folder, "/run")
        layers = "lowerdir=/var,upperdir=/run/var,workdir=/run/var.work"
        self.run("mount", "-t", "overlay", "-o", layers, "overlay", "/var")

    def run(self, *command: str | Path, check: bool = True) -> str:
        """Output of a command that runs inside. Raises CommandFailed."""
        return run([*self._enter("--mount", "--net"), *command], check=check)

    def spawn(self, name: str, *command: str | Path) -> Daemon:
        """Start a daemon inside; its output is appended to the file /run/log/`name`."""
        with (self.folder / "log" / name).open("ab") as log:
            process = subprocess.Popen(
                [*self._enter("--mount", "--net", "--pid", "--ipc"), *(str(word) for word in command)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            daemon = Daemon(name, process)
        except ClusterError as error:
            raise ClusterError(f"{name} did not start: {self._end_of_log(name) or error}") from error
        self._daemons.append(daemon)
        return daemon

    def _end_of_log(self, name: str) -> str:
        return (self.folder / "log" / name).read_text(errors="replace")[-3000:]

    def _enter(self, *namespaces: str) -> Sequence[str]:
        return ["nsenter", "--target", str(self._first), *namespaces, "--"]

    def check(self) -> None:
        """Raise ClusterError if a daemon has ended on its own."""
        for daemon in self._daemons:
            if not daemon.running:
                raise ClusterError(f"{daemon.name} ended; its log ends with:\n{self._end_of_log(daemon.name)}")

    def stop(self, daemon: Daemon, seconds: float) -> None:
        """End one daemon, killing it after that many seconds."""
        self._daemons.remove(daemon)
        daemon.stop(seconds)

    def stop_all(self, seconds: float) -> None:
        """End every daemon, newest first, as `stop` does; the sandbox stays."""
        for daemon in reversed(tuple(self._daemons)):
            self.stop(daemon, seconds)

    def close(self) -> None:
        """End every process and remove the folder and the control group."""
        if self._unshare.poll() is None:
            os.kill(self._first, signal.SIGKILL)
        self._unshare.wait()
        for daemon in self._daemons:
            daemon.join()
        os.close(self.network)
        _remove(self.folder)
        os.close(self._lock)


@contextmanager
def inside(network: int) -> Iterator[None]:
    """This thread is in the network namespace behind the descriptor."""
    outside = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        _set_network(network)
        yield
    finally:
        _set_network(outside)
        os.close(outside)


def remove_abandoned(parent: Path) -> None:
    """Remove what sandboxes left in `parent` whose processes were killed."""
    for folder in parent.glob("v4serve-*"):
        try:
            lock = _try_lock(folder)
        except (BlockingIOError, FileNotFoundError):
            continue  # in use, or removed by somebody else just now
        _remove(folder)
        os.close(lock)


def _set_network(descriptor: int) -> None:
    if _LIBC.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _try_lock(folder: Path) -> int:
    """Descriptor that holds the folder's lock as long as this process lives. Raises BlockingIOError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _remove(folder: Path) -> None:
    # containerd also makes groups in a hierarchy of version 2 that stands beside those of version 1.
    for group in (_CGROUPS / folder.name, *_CGROUPS.glob(f"*/{folder.name}")):
        for below in sorted(group.rglob("*/"), reverse=True):
            _until(partial(_removed, below), f"{below} still has processes")
        _until(partial(_removed, group), f"{group} still has processes")
    run(["rm", "--recursive", folder])  # tens of thousands of files: a third of the time that Python takes


def _removed(group: Path) -> bool:
    """Remove an empty control group; a process that has just been killed keeps it busy for a moment."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _hierarchies() -> list[Path]:
    """Roots of the control groups: one of version 2, or one per controller of version 1."""
    if (_CGROUPS / "cgroup.controllers").exists():
        return [_CGROUPS]
    return [path for path in _CGROUPS.iterdir() if path.is_mount() and not (path / "cgroup.controllers").exists()]


def _only_child(process: subprocess.Popen[bytes]) -> int:
    """Process id of the child of `process`. Raises ClusterError if it ends without one."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    found: list[int] = []

    def look() -> bool:
        if process.poll() is not None:
            raise ClusterError(f"{process.args!r} ended with status {process.returncode}")
        found.extend(map(int, children.read_text().split()))
        return bool(found)

    _until(look, f"{process.args!r} has not started")
    return found[0]


def _until(done: Callable[[], bool], otherwise: str) -> None:
    deadline = time.monotonic() + _END_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise ClusterError(otherwise)
        time.sleep(_POLL_SECONDS)
