"""Helm, away from every cluster and from the user's own settings."""

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

CHART = Path(__file__).parents[2] / "charts" / "v4serve"
SCENARIOS = sorted((CHART / "ci").glob("*-values.yaml"))
OLDEST, NEWEST = "1.20", "1.36"  # servers that the chart is rendered for

Json = dict[str, Any]


class HelmFailed(Exception):
    """Helm refused; the message is what it wrote."""


@dataclass(frozen=True)
class Helm:
    """The binary, and a folder for what it keeps."""

    binary: Path
    home: Path

    def run(self, *arguments: str | Path, text: str = "") -> str:
        """Standard output. Raises HelmFailed."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HELM_", "KUBE"))}
        environment |= {"HOME": str(self.home), "KUBECONFIG": str(self.home / "none")}
        command = [self.binary, *arguments]
        done = subprocess.run(command, input=text, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise HelmFailed(done.stderr)
        return done.stdout

    def template(
        self,
        values: Mapping[str, Any] | Path | None = None,
        *,
        release: str = "v4serve",
        namespace: str = "v4serve-system",
        server: str = NEWEST,
        kinds: str = "",
    ) -> str:
        """The manifests as YAML; `kinds` = further ones of the server, GROUP/VERSION/KIND,... Raises HelmFailed."""
        text = values.read_text() if isinstance(values, Path) else json.dumps(values or {})
        arguments = ["--namespace", namespace, "--kube-version", server, "--values", "-"]
        if kinds:
            arguments += ["--api-versions", kinds]
        return run_once(self, ("template", release, CHART, *arguments), text)

    def objects(self, values: Mapping[str, Any] | Path | None = None, **arguments: str) -> list[Json]:
        """The manifests. Raises HelmFailed."""
        return [found for found in yaml.load_all(self.template(values, **arguments), yaml.CSafeLoader) if found]

    def notes(self, values: Mapping[str, Any] | None = None, *, namespace: str = "v4serve-system") -> str:
        """What an installation prints. Raises HelmFailed."""
        arguments = ("--namespace", namespace, "--dry-run=client", "--values", "-")
        text = self.run("install", "v4serve", CHART, *arguments, text=json.dumps(values or {}))
        return text.partition("\nNOTES:\n")[2]


@cache
def run_once(helm: Helm, arguments: tuple[str | Path, ...], text: str) -> str:
    """Many tests look at the same manifests."""
    return helm.run(*arguments, text=text)


def find(objects: list[Json], kind: str, name: str = "") -> Json:
    """The one object of a kind, and of a name if given."""
    found = [one for one in objects if one["kind"] == kind and name in ("", one["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def nested(path: str, value: Any) -> Json:
    """Values with one setting, named as after `--set`."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)
