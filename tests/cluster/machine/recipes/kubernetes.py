"""Kubernetes 1.20.2, built from Debian's source package: the newest that still holds servers and kubelet."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.machine.commands import run
from tests.cluster.machine.recipes import debian

BINARIES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy")

_SOURCE = "kubernetes=1.20.5+really1.20.2-1.1+deb12u1"  # Debian's name for upstream's 1.20.2
_VERSION = {
    "gitVersion": "v1.20.2",
    "gitMajor": "1",
    "gitMinor": "20",
    "gitTreeState": "archive",
    "gitCommit": "debian",
    "buildDate": "2021-01-13T00:00:00Z",
}
_GO = Path("/usr/lib/go-1.19/bin")
_REFLECT2 = Path("/usr/share/gocode/src/github.com/modern-go/reflect2")
_MODULE = "k8s.io/kubernetes"


def make(into: Path, work: Path) -> None:
    """Build all BINARIES: about 6 minutes of one core and 3 GB of `work`."""
    if not (_GO / "go").exists() or not _REFLECT2.exists():
        debian.install("golang-1.19-go", "golang-github-modern-go-reflect2-dev")
    tree = _unpack(work)
    env = _environment(work)
    _replace_reflect2(tree)
    _generate_openapi(tree, work, env)
    print("building Kubernetes 1.20.2 (minutes)", file=sys.stderr)
    stamps = [
        f"-X {_MODULE}/vendor/k8s.io/{package}/version.{name}={value}"
        for package in ("component-base", "client-go/pkg")
        for name, value in _VERSION.items()
    ]
    targets = [f"{_MODULE}/cmd/{name}" for name in BINARIES]
    run(["go", "build", "-ldflags", " ".join(["-s", "-w", *stamps]), "-o", f"{into}/", *targets], cwd=tree, env=env)


def _unpack(work: Path) -> Path:
    """The source tree, at the place under GOPATH that its import paths say."""
    print("fetching the source of Kubernetes 1.20.2", file=sys.stderr)
    debian.Suite("bookworm", work / "apt").source(_SOURCE, work)
    tree = work / "gopath" / "src" / _MODULE
    tree.mkdir(parents=True)
    (archive,) = work.glob("kubernetes_*.orig.tar.gz")
    run(["tar", "-xzf", archive, "-C", tree, "--strip-components=1"])
    return tree


def _environment(work: Path) -> dict[str, str]:
    return os.environ | {
        "PATH": f"{_GO}:{os.environ['PATH']}",
        "GO111MODULE": "off",  # with modules it wants to update go.mod, and the vendored tree forbids that
        "GOPATH": str(work / "gopath"),
        "GOCACHE": str(work / "gocache"),
        "GOPROXY": "off",
        "GOFLAGS": "",
        "CGO_ENABLED": "0",
    }


def _replace_reflect2(tree: Path) -> None:
    """The vendored reflect2 1.0.1 walks maps in a way that crashes the server when built by Go 1.18 or newer."""
    vendored = tree / "vendor/github.com/modern-go/reflect2"
    for old in (*vendored.glob("*.go"), *vendored.glob("*.s")):
        old.unlink()
    for new in (*_REFLECT2.glob("*.go"), *_REFLECT2.glob("*.s")):
        shutil.copy(new, vendored)


def _generate_openapi(tree: Path, work: Path, env: dict[str, str]) -> None:
    """The one generated file that the source package lacks: the API's own description."""
    generator = work / "openapi-gen"
    run(["go", "build", "-o", generator, f"{_MODULE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen"], cwd=tree, env=env)
    header = work / "header.txt"
    header.write_text("/*\nGenerated.\n*/\n\n")
    command: list[str | Path] = [generator, "--input-dirs", ",".join(sorted(set(_described_packages(tree))))]
    command += ["--output-package", f"{_MODULE}/pkg/generated/openapi", "--output-base", work / "gopath" / "src"]
    command += ["--output-file-base", "zz_generated.openapi", "--go-header-file", header]
    run([*command, "--report-filename", work / "violations"], cwd=tree, env=env)


def _described_packages(tree: Path) -> Iterator[str]:
    """Import paths of the packages that ask to be described."""
    staging = Path("staging/src")
    for root in (tree / "pkg", tree / staging / "k8s.io"):
        for file in root.rglob("*.go"):
            package = file.parent.relative_to(tree)
            skipped = any(
                part in ("testdata", "code-generator") or part.startswith("sample-") for part in package.parts
            )
            if skipped or file.name.endswith("_test.go") or file.name.startswith("zz_generated"):
                continue
            if b"+k8s:openapi-gen=" in file.read_bytes():
                place = "vendor" / package.relative_to(staging) if package.is_relative_to(staging) else package
                yield f"{_MODULE}/{place}"
