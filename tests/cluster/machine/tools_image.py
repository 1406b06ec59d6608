"""The two images that every test cluster has: what holds a pod's namespaces, and a shell with the usual commands."""

import os
import shutil
from functools import partial
from pathlib import Path

from tests.cluster import archive
from tests.cluster.machine import cache
from tests.cluster.machine.commands import run
from tests.cluster.machine.progress import say

PAUSE = "docker.io/library/pause:test"
BUSYBOX = "docker.io/library/busybox:test"


def tools_image() -> Path:
    """A docker-archive with both, from the cache if it is there. Raises CommandFailed, OSError."""
    binary = Path(shutil.which("busybox") or "/bin/busybox")
    key = cache.digest(Path(__file__).read_bytes(), Path(archive.__file__).read_bytes(), binary.read_bytes())
    return cache.entry("tools", key, partial(_make, binary)) / "tools.tar"


def _make(binary: Path, into: Path, work: Path) -> None:
    say("making the images of pause and busybox")
    root, layer = work / "root", work / "layer.tar"
    for folder, mode in (("bin", 0o755), ("etc", 0o755), ("tmp", 0o1777)):
        (root / folder).mkdir(parents=True)
        (root / folder).chmod(mode)
    shutil.copy(binary, root / "bin/busybox")
    for applet in set(run([binary, "--list"]).split()) - {"busybox"}:
        os.symlink("busybox", root / "bin" / applet)
    archive.write_layer(root, ["."], layer)
    config = {"Cmd": ["sleep", "infinity"], "Env": ["PATH=/bin"]}
    architecture = run(["dpkg", "--print-architecture"]).strip()
    archive.write_archive([layer], {PAUSE: config, BUSYBOX: config}, architecture, into / "tools.tar")
