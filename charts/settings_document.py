"""Generates the tables of docs/settings.md from the settings of each process.

`python -m charts.settings_document` rewrites the tables between the markers `<!-- settings: NAME -->` and
`<!-- end -->`, and keeps the text around them; `--print` prints the result.
"""

import re
import sys
from pathlib import Path
from typing import Any

from v4_cli.generate import GenerateConfig
from v4_cli.options import default_text
from v4_cli.topology import LocalConfig
from v4_core.settings import keys
from v4_operator.config import OperatorConfig
from v4_router.config import RouterConfig
from v4_router.policy import Policy
from v4_worker.config import WorkerConfig

FILE = Path(__file__).parents[1] / "docs" / "settings.md"
CONFIGS: dict[str, type[Any]] = {
    config.__name__: config
    for config in (WorkerConfig, RouterConfig, Policy, LocalConfig, GenerateConfig, OperatorConfig)
}
_TABLE = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->\n)", re.DOTALL)


def document(text: str) -> str:
    """Returns `text` with new tables. Raises KeyError for a marker with an unknown name."""
    return _TABLE.sub(lambda match: f"{match[1]}\n{table(CONFIGS[match[2]])}\n{match[3]}", text)


def table(config: type[Any]) -> str:
    """Returns the table of one config: a row for each key."""
    rows = [
        f"| `{key.name}` | {_flag(key.name, key.flag)} | {default_text(key)} | {key.setting.text} |\n"
        for key in keys(config)
    ]
    return "| key | flag | default | meaning |\n|---|---|---|---|\n" + "".join(rows)


def _flag(name: str, flag: str | None) -> str:
    return f"`{flag}`" if flag else ""


if __name__ == "__main__":
    if sys.argv[1:] == ["--print"]:
        sys.stdout.write(document(FILE.read_text("utf-8")))
    else:
        FILE.write_text(document(FILE.read_text("utf-8")), "utf-8")
