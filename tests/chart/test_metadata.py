"""What the chart says of itself: for Artifact Hub, in its notes, and in the README."""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from tests.chart.helm import CHART, Helm, find, nested
from v4_core.kubernetes import API_KEY_ENTRY, KIND, VERSION
from v4_operator.manifests.router_objects import endpoint
from v4_operator.manifests.secret_objects import keys_secret
from v4_operator.spec.parse import parse

ROOT = CHART.parents[1]
DEMO = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text(encoding="utf-8"))


def _chart() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    return found


def _annotation(name: str) -> Any:
    return yaml.safe_load(_chart()["annotations"][f"artifacthub.io/{name}"])


def test_versions_agree() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert _chart()["appVersion"] == project["version"]
    assert _annotation("license") == project["license"]


def test_artifact_hub_knows_the_images(helm: Helm) -> None:
    (container,) = find(helm.objects(), "Deployment")["spec"]["template"]["spec"]["containers"]
    flags = dict(argument.split("=", 1) for argument in container["args"] if "image=" in argument)
    images = {one["name"]: one["image"] for one in _annotation("images")}
    assert images == {"router": flags["--router-image"], "worker": flags["--worker-image"]}


def test_artifact_hub_knows_the_definition() -> None:
    definition = yaml.safe_load((CHART / "files" / "crd.yaml").read_text(encoding="utf-8"))
    (described,) = _annotation("crds")
    assert (described["name"], described["kind"], described["version"]) == (
        definition["metadata"]["name"],
        KIND,
        VERSION,
    )
    assert _annotation("crdsExamples") == [DEMO]


def test_artifact_hub_knows_the_changes() -> None:
    assert {change["kind"] for change in _annotation("changes")} <= {
        "added", "changed", "deprecated", "removed", "fixed", "security",
    }  # fmt: skip


def test_the_notes_serve_the_demo(helm: Helm) -> None:
    notes = helm.notes()
    manifest = notes.partition("<<'END'\n")[2].partition("  END\n")[0]
    assert yaml.safe_load(manifest) == DEMO
    v4d = parse({**DEMO, "metadata": {"name": "demo", "namespace": "v4serve-system", "uid": "u", "generation": 1}})
    assert f"v4serve-system {keys_secret(v4d)} -o jsonpath='{{.data.{API_KEY_ENTRY}}}'" in notes
    assert f"service/demo 8000:{endpoint(v4d).rpartition(':')[2].removesuffix('/v1')} " in notes


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({}, "of all namespaces."),
        ({"watch": {"namespaces": ["one", "two"]}}, "of namespace one, two."),
        ({"watch": {"namespaces": ["one", "two"]}}, "kubectl apply --namespace one -f"),
    ],
)
def test_the_notes_say_where(helm: Helm, values: dict[str, Any], text: str) -> None:
    assert text in helm.notes(values)


def test_warnings_come_first(helm: Helm) -> None:
    assert "WARNING" not in helm.notes()
    assert helm.notes({"operator": {"replicas": 0}}).startswith("WARNING: operator.replicas is 0")


@pytest.mark.parametrize("switch", ["podMonitor", "serviceMonitor"])
def test_the_notes_warn_where_prometheus_may_be_kept_out(helm: Helm, switch: str) -> None:
    monitored = {"monitoring": {switch: {"enabled": True}}}
    notes = helm.notes(monitored)
    assert notes.startswith("WARNING: operator.networkPolicy.scrapeFrom is empty")
    (told,) = re.findall(r"'operator\.networkPolicy\.scrapeFrom=(.*)'", notes)
    assert "WARNING" not in helm.notes({**monitored, **nested("operator.networkPolicy.scrapeFrom", json.loads(told))})
