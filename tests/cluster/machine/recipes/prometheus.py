"""Prometheus 2.42 and promtool, out of Debian's package, which is unpacked and not installed."""

import shutil
from pathlib import Path

from tests.cluster.machine.commands import run
from tests.cluster.machine.progress import step
from tests.cluster.machine.recipes import debian

BINARIES = ("prometheus", "promtool")


def make(into: Path, work: Path) -> None:
    """Unpack both: 30 MB to fetch."""
    with step("fetching Prometheus"):
        package = debian.Suite("bookworm", work / "apt").package("prometheus", work)
    run(["dpkg-deb", "-x", package, work / "root"])
    for name in BINARIES:
        shutil.copy(work / "root/usr/bin" / name, into / name)
