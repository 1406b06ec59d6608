"""What tests take from npm, at the versions of schema/package.json: kept where the test cluster's parts are."""

import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cluster.machine import cache
from tests.cluster.machine.commands import run
from tests.cluster.machine.errors import CommandFailed

SCHEMA = Path(__file__).parent / "schema"
_FILES = ("package.json", "package-lock.json")


def link_packages(work: Path) -> None:
    """Puts node_modules into `work`. Skips the test where they cannot be had; with CI=true it fails."""
    key = cache.digest(*((SCHEMA / name).read_bytes() for name in _FILES))
    try:
        installed = cache.entry("npm", key, _install)
    except (CommandFailed, OSError) as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"needs node, npm and its packages: {error}")
    (work / "node_modules").symlink_to(installed / "node_modules")


def type_complaints(work: Path, sources: Mapping[str, str]) -> list[str]:
    """TypeScript's about sources by name; `work` holds node_modules, and what they import."""
    shutil.copy(SCHEMA / "tsconfig.json", work)
    for name, source in sources.items():
        (work / f"{name}.ts").write_text(source, encoding="utf-8")
    command = ["node", "node_modules/typescript/bin/tsc", "--pretty", "false"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1, 2), done.stderr
    return done.stdout.splitlines()


def _install(into: Path, work: Path) -> None:
    for name in _FILES:
        shutil.copy(SCHEMA / name, into)
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", f"--cache={work}"], cwd=into)
