"""Type-checks dashboards against Grafana's own schema, by TypeScript's compiler. Both come from npm, at the versions of
schema/package.json, and are kept where the test cluster's parts are."""

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.machine import cache
from tests.cluster.machine.commands import run
from tests.cluster.machine.errors import CommandFailed, PartMissing

_SCHEMA = Path(__file__).parent / "schema"
_PACKAGES = ("package.json", "package-lock.json")


def packages() -> Path:
    """The folder that holds node_modules. Raises PartMissing."""
    key = cache.digest(*((_SCHEMA / name).read_bytes() for name in _PACKAGES))
    try:
        return cache.entry("grafana-schema", key, _install)
    except (CommandFailed, OSError) as error:
        raise PartMissing(f"@grafana/schema could not be had; it needs node and npm: {error}") from error


def check(installed: Path, dashboards: Mapping[str, Mapping[str, Any]], work: Path) -> list[str]:
    """The compiler's complaints, none if all is well. `work` is a folder to work in."""
    for source in (_SCHEMA / "dashboard.ts", _SCHEMA / "tsconfig.json"):
        shutil.copy(source, work)
    (work / "node_modules").symlink_to(installed / "node_modules")
    for name, dashboard in dashboards.items():
        value = json.dumps(dashboard, indent=1)
        text = f'import type {{ Dashboard }} from "./dashboard";\nexport const value: Dashboard = {value};\n'
        (work / f"{name}.ts").write_text(text, encoding="utf-8")
    compiler = work / "node_modules/typescript/bin/tsc"
    done = subprocess.run(
        ["node", compiler, "--pretty", "false"], cwd=work, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 1, 2), done.stderr
    return done.stdout.splitlines()


def _install(into: Path, work: Path) -> None:
    for name in _PACKAGES:
        shutil.copy(_SCHEMA / name, into)
    run(["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", f"--cache={work}"], cwd=into)
