import subprocess
import sys
from pathlib import Path

import v4_core

CORE = Path(v4_core.__file__).parents[1]
PROTO = Path("v4_core/v1/worker.proto")


def test_generated_code_is_current(tmp_path: Path) -> None:
    """What `make proto` would write is what is committed."""
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "pyi", "grpc_python")]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", "-I", str(CORE), *outputs, str(CORE / PROTO)], check=True
    )
    for name in ("worker_pb2.py", "worker_pb2.pyi", "worker_pb2_grpc.py"):
        fresh, committed = tmp_path / PROTO.parent / name, CORE / PROTO.parent / name
        assert fresh.read_text() == committed.read_text(), f"{name} is stale: run make proto"
