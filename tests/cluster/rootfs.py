"""The root file system of the test image: Debian's Python, packages of PyPI, the project. Knows no cache and no tags.

What it holds beyond Debian lies in usr/local and opt. Commands run inside by chroot in namespaces of their own.
"""

import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.cluster.machine.commands import run

PYTHON = "python3.11"
PACKAGES = f"usr/local/lib/{PYTHON}/dist-packages"

# What Python and the wheels of torch, numba and grpcio load, and no shell.
_DEBIAN = [
    "ca-certificates",
    "libbz2-1.0",
    "libc6",
    "libcrypt1",
    "libexpat1",
    "libffi8",
    "libgcc-s1",
    "liblzma5",
    "libpython3.11-minimal",
    "libpython3.11-stdlib",
    "libsqlite3-0",
    "libssl3",
    "libstdc++6",
    "libuuid1",
    "media-types",
    "python3.11-minimal",
    "zlib1g",
]

# Parts of packages that no pod loads, a fifth of the image; patterns below the folder of packages.
_NOT_NEEDED = (
    *(
        "torch/bin/test_*",
        "torch/bin/protoc*",
        "torch/include",
        "torch/share",
        "torch/test",
        "torch/lib/*.a",
        "bin",
        "**/tests",
    ),
    "torch/testing/_internal/py312_*.py",  # no Python of this version reads them
)

# $1 root, $2 ro or rw, $3 folder for /tmp, then the command, which enters the root itself.
_MOUNT = """
set -e
root=$1 access=$2 tmp=$3; shift 3
mount --bind "$root" "$root"
mount -o "remount,bind,$access" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount --bind "$tmp" "$root/tmp"
exec "$@"
"""


def inside(
    root: Path, command: Sequence[str], env: Mapping[str, str], *, tmp: Path, user: str = "0:0", read_only: bool = False
) -> list[str]:
    """The command line that runs `command` with this root, environment and /tmp.

    It sees its own processes only, and they end with it. Needs root.
    """
    mounted = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _MOUNT, "sh"]
    access = "ro" if read_only else "rw"
    variables = [f"{name}={value}" for name, value in env.items()]
    enter = [shutil.which("chroot") or "chroot", f"--userspec={user}", str(root)]
    return [*mounted, str(root), access, str(tmp), "env", "-i", *variables, *enter, *command]


def debian_versions() -> str:
    """Address and hash of every Debian package, as apt knows them now: one text for one base."""
    return run(["apt-get", "download", "--print-uris", *_DEBIAN])


def architecture() -> str:
    """Debian's name of this machine's architecture, which is also that of images."""
    return run(["dpkg", "--print-architecture"]).strip()


def add_debian(root: Path) -> None:
    """Unpack Debian's packages, without their scripts."""
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / "usr" / name).mkdir(parents=True, exist_ok=True)
        (root / name).symlink_to(f"usr/{name}")
    for name in ("dev", "etc", "opt", "proc", "sys", "tmp"):
        (root / name).mkdir()
    (root / "tmp").chmod(0o1777)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # for apt's own user
        run(["apt-get", "--quiet=2", "-o", "APT::Sandbox::User=root", "download", *_DEBIAN], cwd=Path(folder))
        for package in sorted(Path(folder).glob("*.deb")):
            run(["dpkg-deb", "--extract", str(package), str(root)])
    for name in ("doc", "man", "locale", "lintian"):
        shutil.rmtree(root / "usr/share" / name, ignore_errors=True)
    certificates = sorted((root / "usr/share/ca-certificates/mozilla").glob("*.crt"))
    (root / "etc/ssl/certs").mkdir(parents=True, exist_ok=True)
    (root / "etc/ssl/certs/ca-certificates.crt").write_text("".join(file.read_text() for file in certificates))
    compile_python(root, f"usr/lib/{PYTHON}")


def add_dependencies(root: Path, requirements: Sequence[str], constraints: Path) -> None:
    """Install packages of PyPI, as wheels for the image's Python. TORCH_INDEX is where torch comes from, if set."""
    place = root / PACKAGES
    index = os.environ.get("TORCH_INDEX")
    with tempfile.TemporaryDirectory() as wheels:
        if index:
            run(
                [
                    *_pip("download"),
                    "--no-deps",
                    "--index-url",
                    index,
                    "--dest",
                    wheels,
                    "-c",
                    str(constraints),
                    "torch",
                ]
            )
            requirements = [*requirements, "--find-links", wheels]
        run([*_pip("install"), "--no-compile", "--target", str(place), "-c", str(constraints), *requirements])
    for pattern in _NOT_NEEDED:
        for path in list(place.glob(pattern)):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)  # it may have lain in a folder that is gone
    compile_python(root, PACKAGES)


def add_application(root: Path, source: Path, commands: dict[str, str]) -> None:
    """Install the project as the wheel of `source`; `commands` are its console scripts, as in pyproject.toml."""
    with tempfile.TemporaryDirectory() as wheels:
        run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", wheels, str(source)])
        [wheel] = Path(wheels).glob("*.whl")
        with zipfile.ZipFile(wheel) as content:
            content.extractall(root / PACKAGES)
    (root / "usr/local/bin").mkdir(exist_ok=True)
    for command, target in commands.items():
        module, function = target.split(":")
        script = root / "usr/local/bin" / command
        script.write_text(f"#!/usr/bin/{PYTHON}\nimport sys\nfrom {module} import {function}\nsys.exit({function}())\n")
        script.chmod(0o755)
    compile_python(root, PACKAGES)


def compile_python(root: Path, folder: str) -> None:
    """Compile modules for the image's Python; valid whatever the times of the files."""
    options = ("-q", "-j", "0", "--invalidation-mode", "unchecked-hash")
    with tempfile.TemporaryDirectory() as tmp:
        run(inside(root, [PYTHON, "-m", "compileall", *options, f"/{folder}"], {"PATH": "/usr/bin"}, tmp=Path(tmp)))


def _pip(command: str) -> list[str]:
    own = [sys.executable, "-m", "pip", command, "--quiet", "--disable-pip-version-check", "--no-input"]
    return [*own, "--python-version", PYTHON.removeprefix("python"), "--only-binary=:all:"]
