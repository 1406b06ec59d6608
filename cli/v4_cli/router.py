"""`v4serve router`: runs the router until SIGINT or SIGTERM."""

from pathlib import Path
from typing import Annotated

import typer

from v4_cli.errors import needs
from v4_cli.options import CheckpointOrDemo, command
from v4_core.logs import configure
from v4_router.config import RouterConfig

_Policy = Annotated[
    Path | None,
    typer.Option("--policy", help="YAML file of the policy; the router reads it again when it changes."),
]


def _router(settings: RouterConfig) -> None:
    """Run the router, which serves the OpenAI API with prefill and decode workers.

    It does not need torch. /ready answers 200 once a token has gone through a prefill and a decode worker.
    """
    configure(settings.log_format)
    with needs("router,operator" if settings.deployment else "router"):
        from v4_router.server import run  # noqa: PLC0415

        if settings.deployment:
            import v4_router.pods  # noqa: F401, PLC0415  a missing package is reported now, not when the watch starts
    run(settings)


router = command(RouterConfig, _router, flags={"model_path": CheckpointOrDemo, "policy": _Policy})
