"""containerd's image store, unpacked once and kept. Knows nothing of pods.

Each set of archives has a template in the cache: containerd's whole root folder after their import. A cluster gets a
copy that shares all files with it by hard links except containerd's databases; containers write to layers of their own,
so the template never changes and a killed cluster cannot harm it. A new template starts as a copy of the last one: only
layers that were not in it are unpacked.
"""

import json
import os
import shutil
import tarfile
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.machine import cache, node
from tests.cluster.machine.commands import run
from tests.cluster.machine.progress import step
from tests.cluster.machine.sandbox import Sandbox
from tests.cluster.machine.waiting import wait

_KEPT_TEMPLATES = 3
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_CTR = ("ctr", "--namespace", "k8s.io")


def copy_store(archives: Sequence[Path], into: Path) -> None:
    """Make `into` a root folder for containerd that holds the images of these docker-archives. Raises ClusterError."""
    # Held to the end of the copy: another process may remove templates.
    with cache.lock("images"):
        templates = cache.folder() / "images"
        templates.mkdir(exist_ok=True)
        template = templates / cache.digest(*sorted(_identity(path) for path in archives))
        if not template.exists():
            _make_template(archives, templates, template)
        os.utime(template)
        _copy(template, into)


def import_archive(sandbox: Sandbox, path: Path) -> None:
    """Import a docker-archive into the containerd that runs in the sandbox. Raises CommandFailed."""
    sandbox.run(*_CTR, "images", "import", path)


def start(sandbox: Sandbox, *, pods: bool) -> None:
    """Start containerd over its root folder in the sandbox, and wait until it answers."""
    node.write_containerd(sandbox.folder, pods=pods)
    sandbox.spawn("containerd", *node.CONTAINERD)
    wait(lambda: _answers(sandbox), _START_SECONDS, "containerd answers", sandbox.check)


def _answers(sandbox: Sandbox) -> bool:
    return "Server:" in sandbox.run(*_CTR, "version", check=False)


def _identity(path: Path) -> str:
    """Archives are named by their content in the cache of the one who builds them; reading them would take seconds."""
    status = path.stat()
    return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"


def _make_template(archives: Sequence[Path], templates: Path, template: Path) -> None:
    with step(f"importing {', '.join(path.name for path in archives)} into containerd"):
        _import(archives, templates, template)


def _import(archives: Sequence[Path], templates: Path, template: Path) -> None:
    older = sorted((path for path in templates.iterdir() if path.is_dir()), key=_used, reverse=True)
    sandbox = Sandbox(cache.folder() / "run")
    try:
        root = sandbox.folder / "images"
        if older:
            _copy(older[0], root)
        start(sandbox, pods=False)
        for path in archives:
            import_archive(sandbox, path)
        wanted = set[str]().union(*map(_references, archives))
        names = sandbox.run(*_CTR, "images", "list", "--quiet").split()
        for stale in (name for name in names if name not in wanted):
            sandbox.run(*_CTR, "images", "remove", "--sync", stale)
        sandbox.stop_all(_STOP_SECONDS)
        root.rename(template)
    finally:
        sandbox.close()
    for path in older[_KEPT_TEMPLATES - 1 :]:
        shutil.rmtree(path)


def _references(path: Path) -> set[str]:
    """The names of the images in a docker-archive."""
    with tarfile.open(path) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        return {tag for image in json.load(manifest) for tag in image["RepoTags"]}


def _used(template: Path) -> float:
    return template.stat().st_mtime


def _copy(template: Path, into: Path) -> None:
    run(["cp", "--archive", "--link", template, into])
    for database in into.rglob("*.db"):
        own = database.with_suffix(".copy")
        shutil.copy2(database, own)
        own.rename(database)
