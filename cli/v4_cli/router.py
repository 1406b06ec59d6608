"""`v4serve router`: run the OpenAI front door until a signal ends it."""

from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from v4_cli.errors import needs
from v4_cli.options import CheckpointOrDemo, ConfigFile, LogFormatFlag
from v4_core.logs import configure
from v4_core.settings import load
from v4_router.config import RouterConfig

_Addresses = list[str] | None
_File = Path | None


def router(
    *,
    model: CheckpointOrDemo = None,
    served_name: Annotated[str | None, typer.Option(help="What clients send as `model`.")] = None,
    prefill: Annotated[_Addresses, typer.Option(help="host:port of a prefill worker; repeat for more.")] = None,
    decode: Annotated[_Addresses, typer.Option(help="host:port of a decode worker; repeat for more.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace of --deployment.")] = None,
    deployment: Annotated[
        str | None, typer.Option(help="V4Deployment whose pods are the workers, instead of --prefill and --decode.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. (default: 8000)")] = None,
    monitoring_port: Annotated[
        int | None, typer.Option(help="HTTP port of /health, /ready, /metrics, /fleet, /facts; 0: none. (default: 0)")
    ] = None,
    api_keys: Annotated[_File, typer.Option(help="YAML file, `key: tenant` a line: who may ask.")] = None,
    insecure: Annotated[
        bool | None, typer.Option("--insecure", help="Listen beyond loopback without --api-keys.")
    ] = None,
    token_file: Annotated[_File, typer.Option(help="File of the secret that workers ask for. (default: none)")] = None,
    policy: Annotated[_File, typer.Option(help="YAML file of limits and choices that may change meanwhile.")] = None,
    drain_seconds: Annotated[
        float | None, typer.Option(help="For running streams after SIGTERM; then they are ended. (default: 2)")
    ] = None,
    log_format: LogFormatFlag = None,
    config: ConfigFile = None,
) -> None:
    """Run the router: the OpenAI API in front of prefill and decode workers.

    Needs no torch. /ready answers 200 once a token went through a pair of workers.
    """
    given = locals() | {"model_path": model, "prefill": prefill or None, "decode": decode or None}
    settings = load(RouterConfig, config, {field.name: given.get(field.name) for field in fields(RouterConfig)})
    configure(settings.log_format)
    with needs("router,operator" if settings.deployment else "router"):
        from v4_router.server import run  # noqa: PLC0415

        if settings.deployment:
            import v4_router.pods  # noqa: F401, PLC0415  what it needs is told here, not once pods are watched
    run(settings)
