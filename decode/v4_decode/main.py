"""The decode worker process."""

from v4_core.v1 import worker_pb2 as pb
from v4_decode.leg import DecodeLeg
from v4_worker.config import WorkerConfig
from v4_worker.leg import WholeLeg
from v4_worker.process import run as run_worker


def run(config: WorkerConfig) -> None:
    """Run until a signal ends it."""
    run_worker(config, "decode", {pb.DECODE: DecodeLeg, pb.WHOLE: WholeLeg})
