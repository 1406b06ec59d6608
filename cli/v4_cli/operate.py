"""`v4serve operator`: runs the Kubernetes operator until SIGINT or SIGTERM."""

import json
from typing import Annotated, Any, Literal

import typer

from v4_cli.errors import needs
from v4_cli.options import ConfigFile
from v4_core.errors import ConfigError
from v4_core.logs import LogFormat, configure
from v4_core.settings import load
from v4_operator.config import OperatorConfig

_Many = list[str] | None


def operator(
    *,
    namespace: Annotated[_Many, typer.Option(help="Namespace to watch; repeat for more.")] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", help="Watch every namespace.")] = False,
    worker_image: Annotated[
        str | None, typer.Option(help="Image of workers, for V4Deployments that do not name one.")
    ] = None,
    router_image: Annotated[
        str | None, typer.Option(help="Image of routers, for V4Deployments that do not name one.")
    ] = None,
    pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        typer.Option(help="When nodes pull images. (default: IfNotPresent)"),
    ] = None,
    pull_secret: Annotated[
        _Many,
        typer.Option(help="Image pull secret in the V4Deployments' namespaces; repeat for more."),
    ] = None,
    common_label: Annotated[
        _Many, typer.Option(help="Label key=value for every object that the operator creates; repeat for more.")
    ] = None,
    operator_label: Annotated[
        _Many,
        typer.Option(help="Label key=value by which network policies select the operator's own pods; repeat for more."),
    ] = None,
    scrape_from: Annotated[
        _Many,
        typer.Option(
            help="NetworkPolicyPeer, in JSON, that may scrape metrics of V4Deployments that name none; repeat for more."
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None, typer.Option(help="Namespace of the leader election's Lease. (default: the operator's own)")
    ] = None,
    lease_name: Annotated[
        str | None, typer.Option(help="Name of the leader election's Lease. (default: v4serve-operator)")
    ] = None,
    health_host: Annotated[
        str | None, typer.Option(help="Listen address of /healthz, /readyz and /metrics. (default: 0.0.0.0)")
    ] = None,
    health_port: Annotated[
        int | None, typer.Option(help="Port of /healthz, /readyz and /metrics. (default: 8080)")
    ] = None,
    resync_seconds: Annotated[
        float | None,
        typer.Option(help="Seconds after which a V4Deployment is reconciled without a change. (default: 300)"),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(
            help="Log format of the operator and of the pods it creates: text, or one JSON object per line. "
            "(default: human)"
        ),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Run the operator, which turns every V4Deployment into worker pools, routers and network policies.

    Connects by KUBECONFIG, or with its pod's service account. Only the replica that holds the Lease is active.
    """
    flags = {
        "namespaces": namespace or None,
        "all_namespaces": all_namespaces or None,
        "worker_image": worker_image,
        "router_image": router_image,
        "pull_policy": pull_policy,
        "pull_secrets": pull_secret or None,
        "common_labels": _labels("--common-label", common_label),
        "operator_labels": _labels("--operator-label", operator_label),
        "scrape_from": _peers(scrape_from),
        "lease_namespace": lease_namespace,
        "lease_name": lease_name,
        "health_host": health_host,
        "health_port": health_port,
        "resync_seconds": resync_seconds,
        "log_format": log_format,
    }
    settings = load(OperatorConfig, config, flags)
    configure(settings.log_format)
    with needs("operator"):
        from v4_operator.desired import desired_state  # noqa: PLC0415
        from v4_operator.process import run  # noqa: PLC0415
    run(settings, desired_state)


def _labels(flag: str, given: list[str] | None) -> dict[str, str] | None:
    """Returns the labels of `key=value` flags; None if there is no flag."""
    pairs = [text.partition("=") for text in given or ()]
    for key, sign, value in pairs:
        if not sign:
            raise ConfigError(f"{flag} {key}{value} is not a label: write it as key=value")
    return {key: value for key, _, value in pairs} or None


def _peers(given: list[str] | None) -> list[Any] | None:
    """Returns the peers of `--scrape-from` flags; None if there is no flag."""
    try:
        return [json.loads(text) for text in given or ()] or None
    except json.JSONDecodeError as error:
        raise ConfigError(f"--scrape-from {error.doc} is not valid JSON: {error}") from None
