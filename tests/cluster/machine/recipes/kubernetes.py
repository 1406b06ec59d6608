"""Kubernetes 1.20.2, built from Debian's source package: the newest that still holds servers and kubelet.

Compiler and source are unpacked beside each other; nothing is installed.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.machine.commands import run
from tests.cluster.machine.errors import PartMissing
from tests.cluster.machine.progress import step
from tests.cluster.machine.recipes import debian, golang

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
_PACKAGES = ("golang-1.19-go", "golang-1.19-src", "golang-github-modern-go-reflect2-dev")
_GO = "usr/lib/go-1.19"
_REFLECT2 = "usr/share/gocode/src/github.com/modern-go/reflect2"
_MODULE = "k8s.io/kubernetes"
_OWN = (f"{_MODULE}/...", f"{_MODULE}/vendor/...")  # all but the standard library, which comes compiled with this Go
_TAGS = "providerless,dockerless"  # upstream's: no clouds' own SDKs (40 MB of source), no Docker to be looked for


def make(into: Path, work: Path) -> None:
    """Build all BINARIES; 2 GB of `work`."""
    root = work / "root"
    with step("fetching the source of Kubernetes 1.20.2 and its compiler, 120 MB"):
        tree = _unpack(work, root)
    env = golang.environment(root / _GO, work / "gopath", work)
    _replace_reflect2(tree, root / _REFLECT2)
    let_go_of_deleted_pods(tree)
    _generate_openapi(tree, work, env)
    stamps = [
        f"{_MODULE}/vendor/k8s.io/{package}/version.{name}={value}"
        for package in ("component-base", "client-go/pkg")
        for name, value in _VERSION.items()
    ]
    targets = [f"{_MODULE}/cmd/{name}" for name in BINARIES]
    flags = ["-tags", _TAGS]
    golang.build("Kubernetes 1.20.2", targets, into, env=env, compiled=_OWN, flags=flags, variables=stamps)


def _unpack(work: Path, root: Path) -> Path:
    """Packages into `root`, and the source tree to the place under GOPATH that its import paths say."""
    suite = debian.Suite("bookworm", work / "apt")
    for package in _PACKAGES:
        run(["dpkg-deb", "-x", suite.package(package, work), root])
    suite.source(_SOURCE, work)
    tree = work / "gopath" / "src" / _MODULE
    tree.mkdir(parents=True)
    (archive,) = work.glob("kubernetes_*.orig.tar.gz")
    run(["tar", "-xzf", archive, "-C", tree, "--strip-components=1"])
    return tree


def _replace_reflect2(tree: Path, newer: Path) -> None:
    """The vendored reflect2 1.0.1 walks maps in a way that crashes the server when built by Go 1.18 or newer."""
    vendored = tree / "vendor/github.com/modern-go/reflect2"
    for old in (*vendored.glob("*.go"), *vendored.glob("*.s")):
        old.unlink()
    for new in (*newer.glob("*.go"), *newer.glob("*.s")):
        shutil.copy(new, vendored)


def let_go_of_deleted_pods(tree: Path) -> None:
    """As upstream has it from 1.20.3 on: https://github.com/kubernetes/kubernetes/pull/97998. Raises PartMissing.

    1.20.0 to 1.20.2 keep a deleted pod until its sandbox is removed, often by a collection that runs once a minute.
    """
    file = tree / "pkg/kubelet/kubelet_pods.go"
    before, check, rest = file.read_text().partition("\t// pod's sandboxes should be deleted\n")
    _, kept, after = rest.partition("\tif kl.podVolumesExist(")
    if not (check and kept):
        raise PartMissing(f"{file.name} is not that of Kubernetes 1.20.2")
    file.write_text(before + kept + after)


def _generate_openapi(tree: Path, work: Path, env: dict[str, str]) -> None:
    """The one generated file that the source package lacks: the API's own description."""
    generator = f"{_MODULE}/vendor/k8s.io/kube-openapi/cmd/openapi-gen"
    golang.build("the generator of its API's description", [generator], work, env=env, compiled=_OWN)
    header = work / "header.txt"
    header.write_text("/*\nGenerated.\n*/\n\n")
    command: list[str | Path] = [work / "openapi-gen", "--input-dirs", ",".join(sorted(set(_described_packages(tree))))]
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
