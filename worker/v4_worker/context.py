"""What the legs of one worker share. Knows no leg and no router."""

from dataclasses import dataclass

from v4_core.token import TokenFile
from v4_core.tracing import Tracing
from v4_kvtransfer.leases import LeaseTable
from v4_kvtransfer.memory import HostMemory
from v4_worker.channels import Channels
from v4_worker.config import WorkerConfig
from v4_worker.engine_thread import EngineThread
from v4_worker.metrics import WorkerMetrics


@dataclass(slots=True, eq=False)
class LegContext:
    """The engine, the memory and the connections that legs work with. Belongs to the event loop."""

    config: WorkerConfig
    engine: EngineThread
    max_waiting: int  # requests that may wait for admission
    fingerprint: str
    memory: HostMemory
    leases: LeaseTable
    channels: Channels
    metrics: WorkerMetrics
    token: TokenFile | None
    tracing: Tracing | None
    address: str = ""  # host:port of this worker; empty until the server listens
