"""Generates charts/v4serve/files/dashboards/*.json: `python -m charts.dashboards`."""

import json
from pathlib import Path

from charts.dashboards import overview, rollout, routing, workers
from charts.dashboards.panels import Json

FOLDER = Path(__file__).parents[1] / "v4serve" / "files" / "dashboards"


def dashboards() -> dict[str, Json]:
    """The JSON of every dashboard, by uid."""
    return {module.NAME: module.make() for module in (overview, routing, workers, rollout)}


def generated() -> dict[Path, str]:
    """The content of every generated file, by path."""
    return {FOLDER / f"{name}.json": json.dumps(made, indent=1) + "\n" for name, made in dashboards().items()}


def main() -> None:
    """Write all dashboards."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for path, text in generated().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
