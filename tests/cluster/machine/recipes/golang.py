"""Builds Go programs that run for minutes and are never debugged, from a GOPATH without modules."""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.machine import cache
from tests.cluster.machine.commands import follow, run
from tests.cluster.machine.progress import step

# A quarter of the compiler's time is spent on what nobody reads and on collecting garbage in processes that live for a
# second. The limit is for the few that would grow large.
_NO_DEBUG = "-dwarf=false"
_MEMORY = {"GOGC": "off", "GOMEMLIMIT": "2GiB"}


def build(
    what: str,
    targets: Sequence[str],
    into: Path,
    *,
    env: dict[str, str],
    compiled: Sequence[str] = ("all",),
    flags: Sequence[str] = (),
    variables: Sequence[str] = (),
) -> None:
    """Build the programs of the packages `targets` into the folder `into`, and say how far it is.

    `env` is what `environment` gives; `compiled` are patterns of the packages that no compiler package has compiled
    already; `variables` are set by the linker, PACKAGE.NAME=VALUE. One at a time: two at once end no sooner, and the
    first one ends later. Raises CommandFailed.
    """
    go = Path(env["GOROOT"]) / "bin/go"
    link = " ".join(["-s", "-w", *(f"-X {variable}" for variable in variables)])
    common = [*flags, *(f"-gcflags={pattern}={_NO_DEBUG}" for pattern in compiled), "-ldflags", link]
    listed = run([go, "list", "-deps", "-f", "{{if .Stale}}{{.ImportPath}}{{end}}", *common, *targets], env=env)
    total = len(listed.split())
    done: list[str] = []  # a line for each package
    with cache.lock("the compiler"), step(f"building {what}", lambda: f"{len(done)} of {total} packages"):
        follow([go, "build", "-v", *common, "-o", f"{into}/", *targets], done.append, env=env)


def environment(root: Path, path: Path, work: Path) -> dict[str, str]:
    """For a Go whose GOROOT and GOPATH these are, with scratch space in `work`."""
    return (
        os.environ
        | _MEMORY
        | {
            "GOROOT": str(root),
            "GOPATH": str(path),
            "GOCACHE": str(work / "gocache"),
            "GOTMPDIR": str(work),
            "GO111MODULE": "off",  # with modules Kubernetes wants to update go.mod, and its vendored tree forbids that
            "GOPROXY": "off",
            "GOTOOLCHAIN": "local",
            "GOFLAGS": "",
            "CGO_ENABLED": "0",
        }
    )
