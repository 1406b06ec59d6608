"""`v4serve router`: run the OpenAI front door until a signal ends it."""

from pathlib import Path
from typing import Annotated

import typer

from v4_cli.errors import needs
from v4_cli.options import ConfigFile
from v4_core.settings import load
from v4_router.config import RouterConfig

_Addresses = list[str] | None


def router(
    *,
    model: Annotated[Path | None, typer.Option(help="Folder of the checkpoint; its tokenizer is used.")] = None,
    served_name: Annotated[str | None, typer.Option(help="What clients send as `model`.")] = None,
    prefill: Annotated[_Addresses, typer.Option(help="host:port of a prefill worker; repeat for more.")] = None,
    decode: Annotated[_Addresses, typer.Option(help="host:port of a decode worker; repeat for more.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. (default: 127.0.0.1)")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on. (default: 8000)")] = None,
    config: ConfigFile = None,
) -> None:
    """Run the router: the OpenAI API in front of prefill and decode workers.

    Needs no torch. /ready answers 200 once a token went through a pair of workers.
    """
    flags = {
        "model_path": model,
        "served_name": served_name,
        "prefill": prefill or None,
        "decode": decode or None,
        "host": host,
        "port": port,
    }
    settings = load(RouterConfig, config, flags)
    with needs("router"):
        from v4_router.server import run  # noqa: PLC0415
    run(settings)
