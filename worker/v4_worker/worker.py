"""The worker around an engine: its legs, streams, leases and load. Lives on the event loop; knows no role.

A role is a table from kind of leg to the class that does it.
"""

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping

import grpc.aio

from v4_core.errors import RequestError
from v4_core.fingerprint import tokenizer_digest
from v4_core.token import TokenFile
from v4_core.tracing import Tracing
from v4_core.v1 import worker_pb2 as pb
from v4_engine.loading import Loaded
from v4_engine.sequence import Key
from v4_kvtransfer.leases import End, Lease, LeaseTable
from v4_kvtransfer.memory import HostMemory
from v4_worker.config import WorkerConfig
from v4_worker.engine_thread import EngineThread, Report, report_of
from v4_worker.leg import STOPPING, Leg
from v4_worker.messages import request_of
from v4_worker.metrics import WorkerMetrics
from v4_worker.stream import RouterStream

LegKinds = Mapping[int, type[Leg]]

_MOST_CHANNELS = 64  # to other workers, kept open
# 15 s from the silent end of the other side to that of the calls. gRPC never starts keepalive_timeout's own timer
# (seen in 1.85), so that ping_timeout is what ends a connection.
KEEPALIVE = (
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),
)
_CHANNEL_OPTIONS = (
    *KEEPALIVE,
    ("grpc.enable_http_proxy", 0),  # workers talk to each other directly
)


class Worker:
    """One pool and everything that runs on it."""

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
        """`token`: what callers must show here, and what this worker shows to others."""
        engine = loaded.engine
        self.config, self.role, self.fingerprint = config, role, loaded.fingerprint
        self.instance = uuid.uuid4().hex
        self.tokenizer = tokenizer_digest(config.model)
        self.model, self.engine_limits = engine.config, engine.scheduler.config
        self.token = token
        self.tracing = tracing
        self.address = ""  # once it is served
        self.memory = HostMemory(engine.geometry, *engine.memory.host_view())
        self.leases = LeaseTable(config.lease_seconds, self._lease_ended)
        self.legs: dict[Key, Leg] = {}
        self.streams: set[RouterStream] = set()
        self.draining = False
        self.transferred_bytes = 0
        self.metrics = metrics
        metrics.watch(engine.counts, report := report_of(engine, []))
        metrics.leases_held.set_function(lambda: self.leases.finished)
        self.load = report.load
        self.engine = EngineThread(engine, self._reported, on_fatal)
        self._kinds = kinds
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._closing: list[asyncio.Future[None]] = []
        self._serial = 0

    @property
    def idle(self) -> bool:
        """Nothing runs here and nobody may still pull from here."""
        return not self.legs and not self.leases.held

    def start(self, message: pb.Start, stream: RouterStream) -> None:
        """Begin a leg. Of one router's legs of a request, the highest attempt stays: a lower one is ignored."""
        for leg in self._legs_of(message.request, stream):
            if leg.key[1] >= message.attempt:
                return
            leg.cancel()
        kind = self._kinds.get(message.phase)
        self._serial += 1
        try:
            if kind is None:
                raise RequestError(f"a {self.role} worker does no {pb.Phase.Name(message.phase)} leg")
            request = request_of(message, self._serial, self.fingerprint, self.model.eos_token_ids)
        except RequestError as error:
            _refuse(message, stream, pb.INVALID, str(error))
            return
        if self.draining:
            _refuse(message, stream, pb.DRAINING, STOPPING)
            return
        leg = self.legs[request.key] = kind(self, request, message, stream)
        leg.run(leg.begin())

    def cancel(self, request: str, attempt: int, stream: RouterStream) -> None:
        """End a router's legs of a request up to an attempt."""
        for leg in self._legs_of(request, stream):
            if leg.key[1] <= attempt:
                leg.cancel()

    def _legs_of(self, request: str, stream: RouterStream) -> list[Leg]:
        return [leg for leg in self.legs.values() if leg.key[0] == request and leg.stream is stream]

    def lost(self, stream: RouterStream) -> None:
        """A router's stream is gone, and with it everything that router started here."""
        self.streams.discard(stream)
        for leg in [leg for leg in self.legs.values() if leg.stream is stream]:
            leg.cancel()

    def drop(self, key: Key) -> None:
        """Free all that the engine holds of a request."""
        self.engine.post(lambda engine: engine.drop(key))

    def channel(self, address: str) -> grpc.aio.Channel:
        """The one channel to another worker."""
        channel = self._channels.pop(address, None) or grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        self._channels[address] = channel  # the last used is last
        for old in list(self._channels)[:-_MOST_CHANNELS]:
            if not any(leg.start_message.source.address == old for leg in self.legs.values()):
                self._closing.append(asyncio.ensure_future(self._channels.pop(old).close(None)))
        self._closing = [task for task in self._closing if not task.done()]
        return channel

    def info(self) -> pb.WorkerInfo:
        """What routers must know."""
        return pb.WorkerInfo(
            role=self.role,
            instance=self.instance,
            fingerprint=self.fingerprint,
            max_model_len=self.engine_limits.max_model_len,
            vocab_size=self.model.vocab_size,
            eos_token_ids=self.model.eos_token_ids,
            load=self.load,
            format=self.memory.geometry.storage,
            index_format=self.memory.geometry.index,
            lease_seconds=self.config.lease_seconds,
            cache_bytes=self.memory.slabs.nbytes + self.memory.tails.nbytes,
            tokenizer=self.tokenizer,
        )

    def begin_drain(self) -> None:
        """Refuse what is new, and what has waited in vain so far: others may have room for it."""
        self.draining = True
        for leg in [leg for leg in self.legs.values() if leg.waits]:
            leg.fail(pb.DRAINING, STOPPING)
        self.publish()

    def being_read(self) -> list[Leg]:
        """Legs whose whole cache a decode worker is about to have."""
        return [leg for leg in self.legs.values() if leg.being_read()]

    def hand_back(self, keep: Collection[Leg]) -> int:
        """Give all legs back to their routers, to be continued elsewhere, but those to `keep`; how many they were."""
        legs = [leg for leg in self.legs.values() if leg not in keep]
        for leg in legs:
            leg.hand_back()
        return len(legs)

    async def close(self) -> None:
        """End everything and stop the engine."""
        for leg in list(self.legs.values()):
            leg.cancel()
        for channel in self._channels.values():
            await channel.close(None)
        await self.engine.stop()

    def publish(self) -> None:
        """Send every router its events and the load."""
        self.load.leases = self.leases.held
        self.load.draining = self.draining
        self.load.transferred_bytes = self.transferred_bytes
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

    def _lease_ended(self, lease: Lease, end: End) -> None:
        self.metrics.lease_ended(end, lease.seconds)
        for leg in [leg for leg in self.legs.values() if leg.key[0] == lease.request]:
            leg.lease_ended(lease, end)


def _refuse(message: pb.Start, stream: RouterStream, reason: pb.Reason, why: str) -> None:
    failed = pb.Failed(reason=reason, message=why)
    stream.put(pb.Event(request=message.request, attempt=message.attempt, failed=failed))
    stream.flush()
