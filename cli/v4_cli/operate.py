"""`v4serve operator`: runs the Kubernetes operator until SIGINT or SIGTERM."""

import json
from functools import partial
from typing import Annotated, Any

import typer

from v4_cli.errors import needs
from v4_cli.options import Parse, command
from v4_core.errors import ConfigError
from v4_core.logs import configure
from v4_core.settings import keys
from v4_operator.config import OperatorConfig


def _operator(settings: OperatorConfig) -> None:
    """Run the operator, which turns every V4Deployment into worker pools, routers and network policies.

    Connects by KUBECONFIG, or with its pod's service account. Only the replica that holds the Lease is active.
    """
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


# Flags whose values are parsed: a label is key=value, a peer is JSON.
_PARSE: dict[str, Parse] = {
    "common_labels": partial(_labels, "--common-label"),
    "operator_labels": partial(_labels, "--operator-label"),
    "scrape_from": _peers,
}
_MANY = {
    key.name: Annotated[list[str] | None, typer.Option(key.flag, help=key.setting.text)]
    for key in keys(OperatorConfig)
    if key.name in _PARSE
}
operator = command(OperatorConfig, _operator, flags=_MANY, parse=_PARSE)
