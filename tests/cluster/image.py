"""The image that the cluster's tests run: the Dockerfile's content without a registry or Docker, one for all roles.

Layers are kept outside the clone under the hash of what they are made of (V4SERVE_CACHE, default ~/.cache/v4serve), so
that a change of the project makes only its own small layer anew. Needs Debian 12 and root. `python -m
tests.cluster.image` builds it and prints where it is.
"""

import hashlib
import os
import shlex
import shutil
import tempfile
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.cluster import archive, dockerfile, rootfs
from tests.cluster.dockerfile import ROOT
from tests.cluster.machine.cache import take
from tests.cluster.machine.commands import run
from tests.cluster.machine.progress import step

IMAGE = "docker.io/library/v4serve:test"
OTHER_IMAGE = "docker.io/library/v4serve:test2"
"""The same files under another digest, for what happens when a deployment's image changes."""

DEMO_MODEL = f"/{rootfs.PACKAGES}/v4_models/demo"
"""The folder of the shipped model in the image."""

_COMMANDS = ("apt-get", "dpkg-deb", "unshare", "chroot", "tar")
_KEPT = 2  # of each kind in the cache
_STEPS = {
    "base": "its layer of Debian's packages",
    "dependencies": "its layer of PyPI's packages, more than 1 GB",
    "application": "its layer of the project",
    "compiled": "its layer of compiled operators",
    "image": "the file for the node",
}


def lacks() -> str | None:
    """Why an image cannot be built on this machine, or None."""
    missing = [command for command in _COMMANDS if shutil.which(command) is None]
    if missing:
        return f"building the image needs Debian 12; missing: {', '.join(missing)}"
    return "building the image needs root" if os.geteuid() else None


def build() -> Path:
    """The docker-archive of IMAGE and OTHER_IMAGE; its name changes with its content. Seconds where layers are kept."""
    cache = _cache()
    with _alone(cache):
        layers = _layers(cache)
        configs = {IMAGE: config(), OTHER_IMAGE: config({"org.opencontainers.image.revision": "other"})}
        key = _hash(archive, configs, *(layer.name for layer in layers))

        def make(folder: Path) -> None:
            archive.write_archive(layers, configs, rootfs.architecture(), folder / "made.tar")

        return _kept(cache, "image", key, make)


def config(more_labels: dict[str, str] | None = None) -> dict[str, Any]:
    """How containers of the image run: as the Dockerfile's worker does, but for the place of its Python."""
    stage = dockerfile.stages()["worker"]
    return {
        "Entrypoint": stage.entrypoint(),
        "Env": [f"{name}={value}" for name, value in environment().items()],
        "Labels": stage.pairs("LABEL") | (more_labels or {}),
        "User": stage.all("USER")[-1],
    }


def environment() -> dict[str, str]:
    """Of a container's process."""
    return dockerfile.stages()["worker"].pairs("ENV") | {"PATH": "/usr/local/bin:/usr/bin"}


@contextmanager
def unpacked() -> Iterator[Path]:
    """The image's files in a folder, for one who runs them without a container runtime; deleted at the end."""
    cache = _cache()
    with tempfile.TemporaryDirectory(dir=cache) as folder:
        with _alone(cache):
            archive.unpack(_layers(cache), Path(folder) / "root")
        yield Path(folder) / "root"


def _layers(cache: Path) -> list[Path]:
    """From what changes least to what changes most: a node unpacks again from the first that is new."""
    base = _layer(cache, "base", _hash(rootfs, rootfs.debian_versions()), rootfs.add_debian, ".")
    wanted, constraints = _requirements(), ROOT / "constraints.txt"
    key = _hash(base.name, wanted, constraints.read_bytes(), os.environ.get("TORCH_INDEX"))

    def add_dependencies(root: Path) -> None:
        archive.unpack([base], root)
        rootfs.add_dependencies(root, wanted, constraints)

    dependencies = _layer(cache, "dependencies", key, add_dependencies, "usr/local")
    application = _application(cache, base)
    return [base, dependencies, _compiled(cache, [base, dependencies, application]), application]


def _application(cache: Path, base: Path) -> Path:
    files = dockerfile.context_files()
    commands = _project()["scripts"]

    def make(root: Path) -> None:
        archive.unpack([base], root)
        with tempfile.TemporaryDirectory() as source:
            for file in files:
                (Path(source) / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / file, Path(source) / file)
            rootfs.add_application(root, Path(source), commands)
        # As every image with Python has it; the chart's test runs a script by this name.
        (root / "usr/local/bin/python3").symlink_to(f"/usr/bin/{rootfs.PYTHON}")

    content = [(str(file), (ROOT / file).read_bytes()) for file in files]
    return _layer(cache, "application", _hash(base.name, "python3", content), make, "usr/local")


def _compiled(cache: Path, below: Sequence[Path]) -> Path:
    """The operators, as the Dockerfile compiles them: for this processor, by the engine as it is."""
    [line] = [line for line in dockerfile.stages()["worker-packages"].all("RUN") if "v4serve generate" in line]
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in words if word.split("=")[0].isupper())
    command = ["v4serve", *words[len(variables) + 1 :]]
    engine = [file for file in dockerfile.context_files() if file.parts[0] == "engine"]

    def make(root: Path) -> None:
        archive.unpack(below, root)
        with tempfile.TemporaryDirectory() as tmp:
            run(rootfs.inside(root, command, environment() | variables, tmp=Path(tmp)))

    content = [(ROOT / file).read_bytes() for file in engine]
    key = _hash(below[0].name, below[1].name, line, _processor(), content)
    return _layer(cache, "compiled", key, make, environment()["V4SERVE_COMPILED"].lstrip("/"))


def _layer(cache: Path, name: str, key: str, add: Callable[[Path], None], member: str) -> Path:
    def make(folder: Path) -> None:
        root = folder / "root"
        root.mkdir()
        add(root)
        archive.write_layer(root, [member], folder / "made.tar")

    return _kept(cache, name, key, make)


def _kept(cache: Path, name: str, key: str, make: Callable[[Path], None]) -> Path:
    """`name-key.tar` of the cache; made in a folder of its own as `made.tar` where it is not there. Old ones go."""
    tar = cache / f"{name}-{key}.tar"
    if tar.exists():
        tar.touch()
        return tar
    with tempfile.TemporaryDirectory(dir=cache) as folder, step(f"building the image: {_STEPS[name]}"):
        make(Path(folder))
        (Path(folder) / "made.tar").rename(tar)
    for old in sorted(cache.glob(f"{name}-*.tar"), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
        old.unlink()
    return tar


def _cache() -> Path:
    cache = Path(os.environ.get("V4SERVE_CACHE", Path.home() / ".cache/v4serve")) / "image"
    cache.mkdir(parents=True, exist_ok=True)
    return cache


@contextmanager
def _alone(cache: Path) -> Iterator[None]:
    """One build at a time."""
    with (cache / "lock").open("w") as lock:
        take(lock, "the image")
        yield


def _project() -> dict[str, Any]:
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _requirements() -> list[str]:
    """What the Dockerfile's images install beside the project: of both, as one image runs every role."""
    project = _project()
    extras = [extra for stage in dockerfile.stages().values() for extra in stage.extras()]
    wanted: list[str] = [*project["dependencies"]]
    while extras:
        for requirement in project["optional-dependencies"][extras.pop()]:
            if requirement.startswith("v4serve["):
                extras += requirement.removeprefix("v4serve[").rstrip("]").split(",")
            else:
                wanted.append(requirement)
    return sorted(set(wanted))


def _processor() -> str:
    """What compiled operators depend on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return "\n".join(sorted({line for line in lines if line.startswith(("model", "flags", "Features", "CPU "))}))


def _hash(*parts: object) -> str:
    """A short name for content; of a module, its source."""
    digest = hashlib.sha256()
    for part in parts:
        path = getattr(part, "__file__", None)
        digest.update(Path(path).read_bytes() if path else repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    print(build())
