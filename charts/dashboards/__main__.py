"""Makes charts/v4serve/files/dashboards/*.json: `python -m charts.dashboards`."""

import json
from pathlib import Path

from charts.dashboards import overview, rollout, routing, workers
from charts.dashboards.panels import Json

FOLDER = Path(__file__).parents[1] / "v4serve" / "files" / "dashboards"


def dashboards() -> dict[str, Json]:
    """Every dashboard in Grafana's JSON, by its uid."""
    return {module.NAME: module.make() for module in (overview, routing, workers, rollout)}


def generated() -> dict[Path, str]:
    """Every generated file and what is in it."""
    return {FOLDER / f"{name}.json": json.dumps(made, indent=1) + "\n" for name, made in dashboards().items()}


def main() -> None:
    """Write every dashboard."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
