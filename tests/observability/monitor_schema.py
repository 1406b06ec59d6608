"""Holds objects against the schemas of Prometheus Operator's kinds, by a package from npm that is made from its CRDs.

TypeScript's compiler tells wrong types and unknown keys, which a server would drop silently; functions of the package
tell wrong values. That a list has each key once, such as groups of rules by name, neither knows.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.machine.commands import run
from tests.observability.npm_packages import SCHEMA, link_packages, type_complaints

_MODULE = "@kubernetes-models/prometheus-operator/monitoring.coreos.com/v1"


def check(objects: Mapping[str, Mapping[str, Any]], work: Path) -> list[str]:
    """The complaints about objects by name, none if all is well. `work` is an empty folder."""
    link_packages(work)
    types = type_complaints(work, {name: _source(found) for name, found in objects.items()})
    shutil.copy(SCHEMA / "monitors.mjs", work)
    values = run(["node", "monitors.mjs"], text=json.dumps(objects), cwd=work)
    return types + values.splitlines()


def _source(found: Mapping[str, Any]) -> str:
    head = f'import type * as v1 from "{_MODULE}";\nexport const value: v1.I{found["kind"]} ='
    return f"{head} {json.dumps(found, indent=1)};\n"
