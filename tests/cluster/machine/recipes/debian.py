"""Debian's package client: packages for this machine, and packages or sources of another suite beside it."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.machine.commands import run
from tests.cluster.machine.errors import PartMissing
from tests.cluster.machine.progress import step

_NO_SERVICES = Path("/usr/sbin/policy-rc.d")  # asked by packages before they start a service
_APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600")


def install(*packages: str) -> None:
    """Install packages on this machine without starting their services. Raises CommandFailed."""
    with step(f"installing {' '.join(packages)}"), _no_services():
        run([*_APT, "update"])
        run([*_APT, "install", "-y", "--no-install-recommends", *packages], env=_environment())


@contextmanager
def _no_services() -> Iterator[None]:
    if _NO_SERVICES.exists():
        yield
        return
    _NO_SERVICES.write_text("#!/bin/sh\nexit 101\n")
    _NO_SERVICES.chmod(0o755)
    try:
        yield
    finally:
        _NO_SERVICES.unlink()


class Suite:
    """One Debian suite with an index of its own, from the mirror that this machine uses; nothing under /etc changes."""

    def __init__(self, name: str, work: Path, *, nothing_installed: bool = False) -> None:
        """`nothing_installed`: dependencies are resolved as for an empty machine. Raises CommandFailed, PartMissing."""
        self._archives = work / "cache" / "archives"
        for needed in (self._archives / "partial", work / "lists" / "partial", work / "parts"):
            needed.mkdir(parents=True, exist_ok=True)
        (work / "status").touch()
        (work / "parts" / "suite.sources").write_text(
            f"Types: deb deb-src\nURIs: {_mirror()}\nSuites: {name}\nComponents: main\n"
            "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
        )
        settings = {
            "Dir::Etc::SourceList": "/dev/null",
            "Dir::Etc::SourceParts": work / "parts",
            "Dir::State::Lists": work / "lists",
            "Dir::Cache": work / "cache",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "root",
        } | ({"Dir::State::status": work / "status"} if nothing_installed else {})
        configuration = work / "apt.conf"
        configuration.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
        self._env = _environment() | {"APT_CONFIG": str(configuration)}
        run([*_APT, "update"], env=self._env)

    def source(self, package: str, into: Path) -> None:
        """Download the files of a source package, `NAME=VERSION`."""
        run([*_APT, "source", "--download-only", package], cwd=into, env=self._env)

    def package(self, package: str, into: Path) -> Path:
        """The .deb file of one package, without what it depends on."""
        run([*_APT, "download", package], cwd=into, env=self._env)
        (file,) = into.glob(f"{package}_*.deb")
        return file

    def download(self, package: str) -> list[Path]:
        """The .deb files of a package and of all it depends on."""
        run([*_APT, "install", "-y", "--download-only", package], env=self._env)
        return sorted(self._archives.glob("*.deb"))


def _environment() -> dict[str, str]:
    return os.environ | {"DEBIAN_FRONTEND": "noninteractive"}


def _mirror() -> str:
    """Where this machine gets Debian from."""
    if not shutil.which("apt-get"):
        raise PartMissing("needs Debian 12: there is no apt-get")
    listed = run(["apt-get", "indextargets", "--format", "$(RELEASE) $(REPO_URI)", "Created-By: Packages"])
    mirrors = dict(line.split(" ", 1) for line in listed.splitlines())
    if "bookworm" not in mirrors:
        raise PartMissing("needs Debian 12 (bookworm) among the package sources of this machine")
    return mirrors["bookworm"]
