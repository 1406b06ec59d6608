"""`v4serve prefill` and `v4serve decode`: run one worker until a signal ends it."""

import logging
from collections.abc import Callable
from typing import Annotated

import typer

from v4_cli.errors import needs
from v4_cli.options import ConfigFile, Device, Dtype, Format
from v4_core.settings import load
from v4_worker.config import WorkerConfig


def _command(run: Callable[[WorkerConfig], None]) -> Callable[..., None]:
    """The command that runs a worker; its help is the docstring of `run`."""

    def command(
        *,
        model: Annotated[str | None, typer.Option(help="Folder of a checkpoint.")] = None,
        host: Annotated[str | None, typer.Option(help="Address to listen on. (default: 127.0.0.1)")] = None,
        port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one. (default: 0)")] = None,
        device: Device = None,
        dtype: Dtype = None,
        format: Format = None,  # noqa: A002
        index_format: Annotated[
            str | None, typer.Option(help="How indexer keys are stored. (default: auto, as --format)")
        ] = None,
        memory: Annotated[
            str | None, typer.Option(help="Memory for the cache, as 80GB or 4GiB. (default: auto, by device)")
        ] = None,
        config: ConfigFile = None,
    ) -> None:
        flags = {
            "model": model,
            "host": host,
            "port": port,
            "device": device,
            "dtype": dtype,
            "format": format,
            "index_format": index_format,
            "memory": memory,
        }
        settings = load(WorkerConfig, config, flags)
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
        run(settings)

    command.__doc__ = run.__doc__
    return command


def _prefill(settings: WorkerConfig) -> None:
    """Run one prefill worker: prompts in, leased caches and first tokens out.

    SIGTERM lets running requests finish for a bounded time, then ends it.
    """
    with needs("worker"):
        from v4_prefill.main import run  # noqa: PLC0415
    run(settings)


def _decode(settings: WorkerConfig) -> None:
    """Run one decode worker: leased caches in, streams of tokens out; whole requests too.

    SIGTERM lets running requests finish for a bounded time, then ends it.
    """
    with needs("worker"):
        from v4_decode.main import run  # noqa: PLC0415
    run(settings)


prefill = _command(_prefill)
decode = _command(_decode)
