"""Type-checks dashboards against Grafana's own schema, by TypeScript's compiler."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.observability.npm_packages import SCHEMA, link_packages, type_complaints


def check(dashboards: Mapping[str, Mapping[str, Any]], work: Path) -> list[str]:
    """The compiler's complaints, none if all is well. `work` is an empty folder."""
    link_packages(work)
    shutil.copy(SCHEMA / "dashboard.ts", work)
    head = 'import type { Dashboard } from "./dashboard";\nexport const value: Dashboard ='
    return type_complaints(
        work, {name: f"{head} {json.dumps(dashboard, indent=1)};\n" for name, dashboard in dashboards.items()}
    )
