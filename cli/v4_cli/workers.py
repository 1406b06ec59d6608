"""`v4serve prefill` and `v4serve decode`: run one worker until SIGINT or SIGTERM."""

from v4_cli.errors import needs
from v4_cli.options import CheckpointOrDemo, command
from v4_core.logs import configure
from v4_worker.config import WorkerConfig


def _prefill(settings: WorkerConfig) -> None:
    """Run one prefill worker, which computes prompts, leases their caches and samples first tokens.

    After SIGTERM running requests may finish for a bounded time; the rest is handed back to the router.
    """
    configure(settings.log_format)
    with needs("worker"):
        from v4_prefill.main import run  # noqa: PLC0415
    run(settings)


def _decode(settings: WorkerConfig) -> None:
    """Run one decode worker, which pulls leased caches and generates tokens. It can also serve whole requests.

    After SIGTERM running requests may finish for a bounded time; the rest is handed back to the router.
    """
    configure(settings.log_format)
    with needs("worker"):
        from v4_decode.main import run  # noqa: PLC0415
    run(settings)


prefill = command(WorkerConfig, _prefill, flags={"model": CheckpointOrDemo})
decode = command(WorkerConfig, _decode, flags={"model": CheckpointOrDemo})
