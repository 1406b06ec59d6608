"""`v4serve prefill` and `v4serve decode`: run one worker until a signal ends it."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Annotated

import typer

from v4_cli.errors import needs
from v4_cli.options import CheckpointOrDemo, ConfigFile, Device, Dtype, Format, LogFormatFlag
from v4_core.logs import configure
from v4_core.settings import load
from v4_worker.config import WorkerConfig

_Count = int | None
_Seconds = float | None


def _command(run: Callable[[WorkerConfig], None]) -> Callable[..., None]:
    """The command that runs a worker; its help is the docstring of `run`. A parameter is a setting of its name."""

    def command(
        *,
        model: CheckpointOrDemo = None,
        host: Annotated[str | None, typer.Option(help="Address to listen on. (default: 127.0.0.1)")] = None,
        port: Annotated[int | None, typer.Option(help="Port to listen on; 0: any free one. (default: 0)")] = None,
        monitoring_port: Annotated[
            int | None, typer.Option(help="HTTP port of /health, /ready and /metrics; 0: none. (default: 0)")
        ] = None,
        token_file: Annotated[
            Path | None, typer.Option(help="File of the secret that callers must show. (default: none)")
        ] = None,
        insecure: Annotated[
            bool | None, typer.Option("--insecure", help="Listen beyond loopback without a --token-file.")
        ] = None,
        device: Device = None,
        dtype: Dtype = None,
        format: Format = None,  # noqa: A002
        index_format: Annotated[
            str | None, typer.Option(help="How indexer keys are stored. (default: auto, as --format)")
        ] = None,
        memory: Annotated[
            str | None, typer.Option(help="Memory for the cache, as 80GB or 4GiB. (default: auto, by device)")
        ] = None,
        slots: Annotated[_Count, typer.Option(help="Cache slots of 256 tokens, instead of --memory.")] = None,
        max_sequences: Annotated[_Count, typer.Option(help="Sequences at once. (default: 16)")] = None,
        max_model_len: Annotated[
            _Count, typer.Option(help="Tokens of prompt and output; 0: what model and memory allow. (default: 0)")
        ] = None,
        chunk_tokens: Annotated[_Count, typer.Option(help="Tokens of one step. (default: 512)")] = None,
        max_waiting: Annotated[_Count, typer.Option(help="Requests that may wait for memory. (default: 256)")] = None,
        checkpoint_every: Annotated[
            _Count, typer.Option(help="Blocks between checkpoints; 0: where prompts end or part. (default: 0)")
        ] = None,
        threads: Annotated[_Count, typer.Option(help="Compute threads; 0: torch's choice. (default: 0)")] = None,
        lease_seconds: Annotated[
            _Seconds, typer.Option(help="That a finished prefill is kept without a pull. (default: 30)")
        ] = None,
        pull_timeout_seconds: Annotated[
            _Seconds, typer.Option(help="That a transfer may be silent. (default: 30)")
        ] = None,
        drain_seconds: Annotated[
            _Seconds, typer.Option(help="For running requests after SIGTERM; then they are handed back. (default: 30)")
        ] = None,
        log_format: LogFormatFlag = None,
        config: ConfigFile = None,
    ) -> None:
        given = locals()
        settings = load(WorkerConfig, config, {field.name: given[field.name] for field in fields(WorkerConfig)})
        configure(settings.log_format)
        run(settings)

    command.__doc__ = run.__doc__
    return command


def _prefill(settings: WorkerConfig) -> None:
    """Run one prefill worker: prompts in, leased caches and first tokens out.

    SIGTERM lets running requests finish for a bounded time, hands the rest back to the router, then ends it.
    """
    with needs("worker"):
        from v4_prefill.main import run  # noqa: PLC0415
    run(settings)


def _decode(settings: WorkerConfig) -> None:
    """Run one decode worker: leased caches in, streams of tokens out; whole requests too.

    SIGTERM lets running requests finish for a bounded time, hands the rest back to the router, then ends it.
    """
    with needs("worker"):
        from v4_decode.main import run  # noqa: PLC0415
    run(settings)


prefill = _command(_prefill)
decode = _command(_decode)
