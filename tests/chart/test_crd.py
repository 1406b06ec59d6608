"""The definition as the chart installs it: for new servers and old, and never deleted by an uninstall."""

import base64
import gzip
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.chart.helm import CHART, NEWEST, OLDEST, Helm, find

_RULES = "x-kubernetes-validations"


def _file() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "files" / "crd.yaml").read_text(encoding="utf-8"))
    return found


def _without_rules(piece: Any) -> Any:
    if isinstance(piece, dict):
        return {key: _without_rules(value) for key, value in piece.items() if key != _RULES}
    return [_without_rules(value) for value in piece] if isinstance(piece, list) else piece


def test_it_is_the_file(helm: Helm) -> None:
    rendered = find(helm.objects(), "CustomResourceDefinition")
    assert rendered["spec"] == _file()["spec"]
    assert _RULES in str(rendered)
    kubernetes_validate.validate(rendered, NEWEST, strict=True)


@pytest.mark.parametrize(("server", "rules"), [(OLDEST, False), ("1.24.17-gke.200", False), ("1.25.0-eks-1", True)])
def test_rules_are_left_out_for_servers_without_cel(helm: Helm, server: str, rules: bool) -> None:
    rendered = find(helm.objects(server=server), "CustomResourceDefinition")
    assert (_RULES in str(rendered)) == rules
    assert _without_rules(rendered["spec"]) == _without_rules(_file()["spec"])


def test_an_uninstall_keeps_it_and_an_upgrade_changes_it(helm: Helm) -> None:
    metadata = find(helm.objects(), "CustomResourceDefinition")["metadata"]
    assert metadata["annotations"] == {"helm.sh/resource-policy": "keep"}
    assert not (CHART / "crds").exists()  # Helm never upgrades what lies there


def test_a_release_stays_far_below_what_a_secret_can_hold(helm: Helm) -> None:
    """Helm keeps chart and manifests in one Secret of at most 1 MiB, compressed, with the chart's files in base64."""
    parts = [path.read_bytes() for path in sorted(CHART.rglob("*")) if path.is_file()]
    whole = b"".join(base64.b64encode(part) for part in parts) + helm.template().encode()
    assert len(base64.b64encode(gzip.compress(whole))) < 400_000
