"""The worker around an engine: its legs, streams, leases and load. Belongs to the event loop; knows no role.

A role is a table from phases to the classes of legs that implement them.
"""

import uuid
from collections.abc import Callable, Collection, Mapping

from v4_core.errors import RequestError
from v4_core.fingerprint import tokenizer_digest
from v4_core.token import TokenFile
from v4_core.tracing import Tracing
from v4_core.v1 import worker_pb2 as pb
from v4_engine.loading import Loaded
from v4_engine.sequence import Key
from v4_kvtransfer.leases import End, Lease, LeaseTable
from v4_kvtransfer.memory import HostMemory
from v4_worker.channels import Channels
from v4_worker.config import WorkerConfig
from v4_worker.context import LegContext
from v4_worker.engine_thread import EngineThread, Report, report_of
from v4_worker.leg import STOPPING, Leg
from v4_worker.messages import request_of
from v4_worker.metrics import WorkerMetrics
from v4_worker.stream import RouterStream

LegKinds = Mapping[int, type[Leg]]  # by phase


class Worker:
    """One cache pool and all legs that run on it."""

    def __init__(
        self,
        config: WorkerConfig,
        role: str,
        loaded: Loaded,
        kinds: LegKinds,
        metrics: WorkerMetrics,
        on_fatal: Callable[[BaseException], None],
        token: TokenFile | None = None,
        tracing: Tracing | None = None,
    ) -> None:
        """`on_fatal` is called if the engine fails. `token` authenticates callers here and this worker to others."""
        engine = loaded.engine
        self.role, self.instance = role, uuid.uuid4().hex
        self.model, self.scheduler_config = engine.config, engine.scheduler.config
        self.legs: dict[Key, Leg] = {}
        self.streams: set[RouterStream] = set()
        self.draining = False
        self.metrics = metrics
        metrics.watch(engine.counts, report := report_of(engine, []))
        metrics.leases_held.set_function(lambda: self.leases.finished)
        self.load = report.load
        self.leases = LeaseTable(config.lease_seconds, self._lease_ended)
        self.engine = EngineThread(engine, self._reported, on_fatal)
        self.context = LegContext(
            config=config,
            engine=self.engine,
            max_waiting=self.scheduler_config.max_waiting,
            fingerprint=loaded.fingerprint,
            memory=HostMemory(engine.geometry, *engine.memory.host_view()),
            leases=self.leases,
            channels=Channels(self._pulls_from),
            metrics=metrics,
            token=token,
            tracing=tracing,
        )
        self._tokenizer = tokenizer_digest(config.model)
        self._kinds = kinds
        self._serial = 0

    @property
    def idle(self) -> bool:
        """Whether no leg runs here and no cache may still be pulled from here."""
        return not self.legs and not self.leases.held

    def start(self, message: pb.Start, stream: RouterStream) -> None:
        """Begin a leg, and cancel lower attempts of its request by the same router.

        Ignored if a leg with the same or a higher attempt runs already.
        """
        for leg in self._legs_of(message.request, stream):
            if leg.key[1] >= message.attempt:
                return
            leg.cancel()
        kind = self._kinds.get(message.phase)
        self._serial += 1
        try:
            if kind is None:
                raise RequestError(f"a {self.role} worker does not serve legs of phase {pb.Phase.Name(message.phase)}")
            request = request_of(message, self._serial, self.context.fingerprint, self.model.eos_token_ids)
        except RequestError as error:
            _refuse(message, stream, pb.INVALID, str(error))
            return
        if self.draining:
            _refuse(message, stream, pb.DRAINING, STOPPING)
            return
        leg = self.legs[request.key] = kind(self.context, request, message, stream, self._closed)
        leg.run(leg.begin())

    def cancel(self, request: str, attempt: int, stream: RouterStream) -> None:
        """Cancel a router's legs of a request whose attempt is at most `attempt`."""
        for leg in self._legs_of(request, stream):
            if leg.key[1] <= attempt:
                leg.cancel()

    def _legs_of(self, request: str, stream: RouterStream) -> list[Leg]:
        return [leg for leg in self.legs.values() if leg.key[0] == request and leg.stream is stream]

    def drop_stream(self, stream: RouterStream) -> None:
        """Cancel everything that a router started here, after its stream ended."""
        self.streams.discard(stream)
        for leg in [leg for leg in self.legs.values() if leg.stream is stream]:
            leg.cancel()

    def info(self) -> pb.WorkerInfo:
        """The worker's properties and load, for routers."""
        return pb.WorkerInfo(
            role=self.role,
            instance=self.instance,
            fingerprint=self.context.fingerprint,
            max_model_len=self.scheduler_config.max_model_len,
            vocab_size=self.model.vocab_size,
            load=self.load,
            tokenizer=self._tokenizer,
        )

    def begin_drain(self) -> None:
        """Refuse new legs, and fail those that still wait for admission: other workers may have room for them."""
        self.draining = True
        for leg in [leg for leg in self.legs.values() if leg.waits]:
            leg.fail(pb.DRAINING, STOPPING)
        self.publish()

    def being_read(self) -> list[Leg]:
        """The legs whose complete cache a decode worker is pulling."""
        return [leg for leg in self.legs.values() if leg.being_read()]

    def hand_back(self, keep: Collection[Leg]) -> int:
        """Hand all legs except `keep` back to their routers, which continue them elsewhere. Returns their number."""
        legs = [leg for leg in self.legs.values() if leg not in keep]
        for leg in legs:
            leg.hand_back()
        return len(legs)

    async def close(self) -> None:
        """Cancel all legs and stop the engine."""
        for leg in list(self.legs.values()):
            leg.cancel()
        await self.context.channels.close()
        await self.engine.stop()

    def publish(self) -> None:
        """Send every router its pending events and the load."""
        self.load.leases = self.leases.held
        self.load.draining = self.draining
        load = pb.Load()
        load.CopyFrom(self.load)
        for stream in self.streams:
            stream.flush(load)

    def _reported(self, report: Report) -> None:
        self.metrics.reported(report)
        for event in report.events:
            leg = self.legs.get(event.request.key)
            if leg is not None:
                leg.measure(event, report.time)
                leg.on_event(event)
        self.load = report.load
        self.publish()

    def _closed(self, leg: Leg) -> None:
        self.legs.pop(leg.key, None)

    def _pulls_from(self, address: str) -> bool:
        return any(leg.start_message.source.address == address for leg in self.legs.values())

    def _lease_ended(self, lease: Lease, end: End) -> None:
        self.metrics.lease_ended(end, lease.seconds)
        for leg in [leg for leg in self.legs.values() if leg.key[0] == lease.request]:
            leg.lease_ended(lease, end)


def _refuse(start: pb.Start, stream: RouterStream, reason: pb.Reason, message: str) -> None:
    failed = pb.Failed(reason=reason, message=message)
    stream.put(pb.Event(request=start.request, attempt=start.attempt, failed=failed))
    stream.flush()
