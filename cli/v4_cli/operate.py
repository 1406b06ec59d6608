"""`v4serve operator`: run the Kubernetes operator until a signal ends it."""

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
    namespace: Annotated[_Many, typer.Option(help="Namespace to serve; repeat for more.")] = None,
    all_namespaces: Annotated[bool, typer.Option("--all-namespaces", help="Serve every namespace.")] = False,
    worker_image: Annotated[str | None, typer.Option(help="Image of workers whose V4Deployment names none.")] = None,
    router_image: Annotated[str | None, typer.Option(help="Image of routers whose V4Deployment names none.")] = None,
    pull_policy: Annotated[
        Literal["Always", "IfNotPresent", "Never"] | None,
        typer.Option(help="When nodes pull images. (default: IfNotPresent)"),
    ] = None,
    pull_secret: Annotated[_Many, typer.Option(help="Secret to pull images with; repeat for more.")] = None,
    common_label: Annotated[_Many, typer.Option(help="key=value on everything made; repeat for more.")] = None,
    operator_label: Annotated[
        _Many, typer.Option(help="key=value of the operator's own pods, for network policies; repeat for more.")
    ] = None,
    scrape_from: Annotated[
        _Many,
        typer.Option(
            help="NetworkPolicyPeer, in JSON, that may read metrics of V4Deployments that name none; repeat for more."
        ),
    ] = None,
    lease_namespace: Annotated[
        str | None, typer.Option(help="Namespace of the Lease. (default: the operator's own)")
    ] = None,
    lease_name: Annotated[str | None, typer.Option(help="Name of the Lease. (default: v4serve-operator)")] = None,
    health_host: Annotated[
        str | None, typer.Option(help="Address of /healthz, /readyz and /metrics. (default: 0.0.0.0)")
    ] = None,
    health_port: Annotated[int | None, typer.Option(help="Their port. (default: 8080)")] = None,
    resync_seconds: Annotated[
        float | None, typer.Option(help="Until everything is looked at again without a reason. (default: 300)")
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(help="Log for people, or one JSON object a line; of the pods it makes too. (default: human)"),
    ] = None,
    config: ConfigFile = None,
) -> None:
    """Run the operator: every V4Deployment becomes pools, a router and their policies.

    Finds the cluster by KUBECONFIG, or by its pod's service account. Of several replicas one works: it holds a Lease.
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
        from v4_operator.desired import plan  # noqa: PLC0415
        from v4_operator.process import run  # noqa: PLC0415
    run(settings, plan)


def _labels(flag: str, given: list[str] | None) -> dict[str, str] | None:
    """The mapping that `key=value` flags say; None where none is given."""
    pairs = [text.partition("=") for text in given or ()]
    for key, sign, value in pairs:
        if not sign:
            raise ConfigError(f"{flag} {key}{value} is not key=value")
    return {key: value for key, _, value in pairs} or None


def _peers(given: list[str] | None) -> list[Any] | None:
    """What `--scrape-from` flags say; None where none is given."""
    try:
        return [json.loads(text) for text in given or ()] or None
    except json.JSONDecodeError as error:
        raise ConfigError(f"--scrape-from {error.doc} is no JSON: {error}") from None
