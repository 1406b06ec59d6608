"""Every field of the worker protocol has a writer and a reader in the product's code, by mypy's types."""

import ast
import os
import subprocess
import sys
from pathlib import Path

from v4_core.v1 import worker_pb2

ROOT = Path(__file__).parents[2]
PACKAGES = ("core", "engine", "kvtransfer", "worker", "prefill", "decode", "router")
# Modules of other libraries are not followed: their types do not matter here, and reading them takes most of the time.
CONFIG = """\
[mypy]
plugins = {plugin}
mypy_path = {path}
cache_dir = {cache}
follow_imports = silent
[mypy-torch.*,numpy.*,numba.*,starlette.*,prometheus_client.*,pydantic.*,aiohttp.*,grpc.*,uvicorn.*,tokenizers.*]
follow_imports = skip
"""


def recorded_uses(folder: Path) -> set[str]:
    """`read Message.field` and `write Message.field` of all product code. mypy looks up an assigned field twice, once
    as if it were read, so a read at the place of a write does not count."""
    uses, config = folder / "uses", folder / "mypy.ini"
    uses.touch()
    path = ":".join(str(ROOT / package) for package in PACKAGES)
    plugin = Path(__file__).with_name("proto_uses.py")
    config.write_text(CONFIG.format(plugin=plugin, path=path, cache=os.devnull))
    files = [
        str(file) for package in PACKAGES for file in (ROOT / package).glob("v4_*/**/*.py") if "_pb2" not in file.name
    ]
    environment = {**os.environ, "V4SERVE_PROTO_USES": str(uses)}
    command = [sys.executable, "-m", "mypy", "--config-file", str(config), *files]
    ended = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert ended.returncode in (0, 1), ended.stdout + ended.stderr  # 1: findings, since libraries are not followed
    found = {tuple(line.split()) for line in uses.read_text(encoding="utf-8").splitlines()}
    written = {(field, place) for use, field, place in found if use == "write"}
    return {f"{use} {field}" for use, field, place in found if use == "write" or (field, place) not in written}


def keys_of_load() -> set[str]:
    """`read Load.field` for each key that the page and `v4serve top` take from the JSON of a load."""
    tree = ast.parse((ROOT / "router" / "v4_router" / "facts.py").read_text(encoding="utf-8"))
    keys = (node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript) and is_load(node.value))
    return {f"read Load.{key.value}" for key in keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def is_load(node: ast.expr) -> bool:
    """Whether an expression is the variable `load`."""
    return isinstance(node, ast.Name) and node.id == "load"


def test_every_field_has_a_writer_and_a_reader(tmp_path: Path) -> None:
    """A field of several values or of message type may be written through an access (`x.field.append(...)`)."""
    uses = recorded_uses(tmp_path) | keys_of_load()
    missing = []
    for message in worker_pb2.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            name, composite = f"{message.name}.{field.name}", field.is_repeated or field.message_type is not None
            if f"read {name}" not in uses:
                missing.append(f"{name} has no reader")
            if f"write {name}" not in uses and not composite:
                missing.append(f"{name} has no writer")
    assert missing == []
