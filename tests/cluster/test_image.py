"""The image that pods run: what the archive holds, and that it runs as a restricted container would."""

import hashlib
import json
import os
import select
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import archive, dockerfile, image, rootfs

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]  # of a first build on a slow machine

_START_SECONDS = 150
_USER = "65532:65532"
_MISSING = image.lacks()

needs_build = pytest.mark.skipif(_MISSING is not None and os.environ.get("CI") != "true", reason=_MISSING or "")


@pytest.fixture(scope="module")
def built() -> Path:
    """The archive."""
    assert _MISSING is None, _MISSING
    return image.build()


@pytest.fixture(scope="module")
def root(built: Path) -> Iterator[Path]:
    """Its files."""
    assert built.exists()
    with image.unpacked() as folder:
        yield folder


@pytest.fixture
def tmp(tmp_path: Path) -> Path:
    """What a container finds as its /tmp: any user may write."""
    tmp_path.chmod(0o1777)
    return tmp_path


def inside(root: Path, tmp: Path, *command: str, env: Mapping[str, str] | None = None) -> list[str]:
    """The command line of a process with the image's user and environment, and its root file system read-only."""
    variables = image.environment() | {"OMP_NUM_THREADS": "1"} | dict(env or {})
    return rootfs.inside(root, command, variables, tmp=tmp, user=_USER, read_only=True)


def output(root: Path, tmp: Path, *command: str) -> str:
    """What it prints; it must end well."""
    done = subprocess.run(inside(root, tmp, *command), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def compiled(folder: Path) -> set[str]:
    """Files of compiled operators."""
    return {file.name for file in folder.rglob("*.nbc")}


@needs_build
def test_one_archive_holds_both_images_of_the_same_layers(built: Path) -> None:
    with tarfile.open(built) as content:

        def read(name: str) -> Any:
            file = content.extractfile(name)
            assert file is not None
            return json.load(file)

        manifest = read("manifest.json")
        configs = [read(entry["Config"]) for entry in manifest]
        sizes = [content.getmember(layer).size for layer in manifest[0]["Layers"]]
    assert [entry["RepoTags"] for entry in manifest] == [[image.IMAGE], [image.OTHER_IMAGE]]
    assert manifest[0]["Layers"] == manifest[1]["Layers"]
    assert manifest[0]["Config"] != manifest[1]["Config"]
    for entry, config in zip(manifest, configs, strict=True):
        assert [f"sha256:{layer.removesuffix('.tar')}" for layer in entry["Layers"]] == config["rootfs"]["diff_ids"]
        assert config["config"]["User"] == _USER
        assert config["config"]["Entrypoint"] == ["v4serve"]
    names = [step["created_by"].partition("-")[0] for step in configs[0]["history"]]
    assert names == ["base", "dependencies", "compiled", "application"]
    assert sizes[-1] < 50e6, "a change of the project must stay cheap"


@needs_build
def test_what_is_built_once_is_kept(built: Path) -> None:
    before = built.stat().st_ino
    assert image.build() == built
    assert built.stat().st_ino == before


@needs_build
def test_no_file_gives_rights_away(root: Path) -> None:
    plain = [path for path in root.rglob("*") if not path.is_symlink()]
    assert [path for path in plain if path.stat().st_mode & 0o6000] == []
    assert [path for path in plain if path.stat().st_mode & 0o002] == [root / "tmp"]


@needs_build
def test_it_runs_as_nobody_in_particular_and_cannot_write(root: Path, tmp: Path) -> None:
    assert output(root, tmp, "v4serve", "--version") == f"v4serve {version('v4serve')}\n"
    who = "import getpass, os; print(os.getuid(), getpass.getuser(), os.path.expanduser('~'))"
    assert output(root, tmp, rootfs.PYTHON, "-c", who) == "65532 v4serve /tmp\n"
    refused = subprocess.run(
        inside(root, tmp, rootfs.PYTHON, "-c", "open('/opt/x', 'w')"), capture_output=True, text=True, check=False
    )
    assert "Read-only file system" in refused.stderr


@needs_build
def test_every_module_of_the_project_can_be_imported(root: Path, tmp: Path) -> None:
    packages = [Path(name).name for name in dockerfile.context() if "/v4_" in name]
    walk = (
        "import importlib, pkgutil, sys\n"
        "for name in sys.argv[1:]:\n"
        "    package = importlib.import_module(name)\n"
        "    for module in pkgutil.walk_packages(package.__path__, name + '.'):\n"
        "        print(importlib.import_module(module.name).__name__)\n"
    )
    assert "v4_operator.spec.v4deployment" in output(root, tmp, rootfs.PYTHON, "-c", walk, *packages).split()


@needs_build
def test_a_worker_starts_on_operators_compiled_ahead(root: Path, tmp: Path) -> None:
    ahead = compiled(root / image.environment()["V4SERVE_COMPILED"].lstrip("/"))
    assert ahead, "the image holds no compiled operators"
    command = ("v4serve", "decode", "--model", "demo", "--slots", "64", "--port", "0")
    with (tmp / "log").open("wb") as log, subprocess.Popen(inside(root, tmp, *command), stderr=log) as worker:
        try:
            wait_for(worker, tmp / "log", "decode worker ready")
        finally:
            end_inside(worker)
    assert compiled(tmp) == ahead


def end_inside(outer: subprocess.Popen[bytes]) -> None:
    """Kill the first process inside, and with it all there: its user changed, so that it outlives its parent."""
    for child in Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    outer.wait(_START_SECONDS)


def wait_for(process: subprocess.Popen[bytes], log: Path, text: str) -> None:
    """Until the text stands in the log; fails with the log where the process ends before, or time does."""
    end = os.pidfd_open(process.pid)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while text not in log.read_text() and time.monotonic() < deadline:
            ended, _, _ = select.select([end], [], [], 0.1)
            assert not ended, log.read_text()
    finally:
        os.close(end)
    assert text in log.read_text()


def test_layers_depend_on_content_alone(tmp_path: Path) -> None:
    digests = []
    for name, order in (("one", "ab"), ("other", "ba")):
        folder = tmp_path / name
        folder.mkdir()
        for number, letter in enumerate(order):
            (folder / letter).write_text(letter)
            os.utime(folder / letter, (number, number))
        archive.write_layer(folder, ["."], tmp_path / f"{name}.tar")
        digests.append(hashlib.sha256((tmp_path / f"{name}.tar").read_bytes()).hexdigest())
    assert digests[0] == digests[1]
