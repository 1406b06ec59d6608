"""Flags of `v4serve operator`."""

from pathlib import Path
from typing import Any

import pytest

from v4_cli.main import run
from v4_operator import process
from v4_operator.config import OperatorConfig
from v4_operator.desired import desired_state

IMAGES = ("--worker-image", "w:1", "--router-image", "r:1")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[OperatorConfig, Any]]:
    """The settings with which operators were started; none of them runs."""
    seen: list[tuple[OperatorConfig, Any]] = []
    monkeypatch.setattr(process, "run", lambda config, decide: seen.append((config, decide)))
    return seen


def test_every_flag_arrives(started: list[tuple[OperatorConfig, Any]]) -> None:
    flags = "--namespace a --namespace b --pull-policy Never --pull-secret x --pull-secret y --common-label team=z"
    more = "--operator-label a/b= --operator-label c=d --lease-namespace n --lease-name l --resync-seconds 60"
    peer = ["--scrape-from", '{"podSelector": {}}']
    rest = [*peer, "--health-port", "1", "--log-format", "json"]
    assert run(["operator", *IMAGES, *flags.split(), *more.split(), *rest]) == 0
    assert started == [
        (
            OperatorConfig(
                worker_image="w:1",
                router_image="r:1",
                namespaces=("a", "b"),
                pull_policy="Never",
                pull_secrets=("x", "y"),
                common_labels={"team": "z"},
                operator_labels={"a/b": "", "c": "d"},
                scrape_from=({"podSelector": {}},),
                lease_namespace="n",
                lease_name="l",
                health_port=1,
                resync_seconds=60.0,
                log_format="json",
            ),
            desired_state,
        )
    ]


def test_a_file_with_flags(started: list[tuple[OperatorConfig, Any]], tmp_path: Path) -> None:
    file = tmp_path / "operator.yaml"
    file.write_text("{worker_image: w:1, router_image: r:1, all_namespaces: true, common_labels: {a: b}}")
    assert run(["operator", "--config", str(file), "--worker-image", "w:2", "--health-host", "127.0.0.1"]) == 0
    config = started[0][0]
    assert (config.worker_image, config.all_namespaces, config.common_labels) == ("w:2", True, {"a": "b"})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--all-namespaces"], "missing: worker_image, router_image"),
        ([*IMAGES], "either --namespace, once for each namespace to serve, or --all-namespaces"),
        ([*IMAGES, "--all-namespaces", "--namespace", "a"], "either --namespace"),
        ([*IMAGES, "--all-namespaces", "--common-label", "team"], "--common-label team is not a label"),
        ([*IMAGES, "--all-namespaces", "--operator-label", "a b=c"], "a b=c is not a label"),
        ([*IMAGES, "--all-namespaces", "--scrape-from", "{"], "--scrape-from { is not valid JSON"),
        ([*IMAGES, "--all-namespaces", "--scrape-from", "1"], "scrape_from[0] must be a group of settings, not 1"),
        ([*IMAGES, "--all-namespaces", "--pull-policy", "Sometimes"], "Invalid value for '--pull-policy'"),
    ],
)
def test_refused(
    started: list[tuple[OperatorConfig, Any]], arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["operator", *arguments]) == 2
    assert message in capsys.readouterr().err
    assert started == []


def test_no_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    assert run(["operator", *IMAGES, "--all-namespaces", "--health-host", "127.0.0.1", "--health-port", "0"]) == 2
    assert "the Kubernetes API cannot be reached" in capsys.readouterr().err
