"""The prefill worker process."""

from v4_core.v1 import worker_pb2 as pb
from v4_prefill.leg import PrefillLeg
from v4_worker.config import WorkerConfig
from v4_worker.leg import WholeLeg
from v4_worker.process import run as run_worker


def run(config: WorkerConfig) -> None:
    """Run until a signal ends it."""
    run_worker(config, "prefill", {pb.PREFILL: PrefillLeg, pb.WHOLE: WholeLeg})
