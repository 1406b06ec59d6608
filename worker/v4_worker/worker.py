"""The worker around an engine: its legs, streams, leases and load. Lives on the event loop; knows no role.

A role is a table from kind of leg to the class that does it.
"""

import uuid
from collections.abc import Callable, Mapping

import grpc.aio

from v4_core.errors import RequestError
from v4_core.v1 import worker_pb2 as pb
from v4_engine.engine import Event
from v4_engine.loading import Loaded
from v4_engine.sequence import Key
from v4_kvtransfer.leases import Lease, LeaseTable
from v4_kvtransfer.memory import HostMemory
from v4_worker.config import WorkerConfig
from v4_worker.engine_thread import EngineThread
from v4_worker.leg import Leg
from v4_worker.messages import request_of
from v4_worker.stream import RouterStream

LegKinds = Mapping[int, type[Leg]]

_CHANNEL_OPTIONS = (("grpc.keepalive_time_ms", 10_000), ("grpc.keepalive_timeout_ms", 5_000))


class Worker:
    """One pool and everything that runs on it."""

    def __init__(
        self,
        config: WorkerConfig,
        role: str,
        loaded: Loaded,
        kinds: LegKinds,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        engine = loaded.engine
        self.config, self.role, self.fingerprint = config, role, loaded.fingerprint
        self.instance = uuid.uuid4().hex
        self.model, self.engine_limits = engine.config, engine.limits
        self.memory = HostMemory(engine.geometry, *engine.memory.host_view())
        self.leases = LeaseTable(config.lease_seconds, self._lease_ended)
        self.legs: dict[Key, Leg] = {}
        self.streams: set[RouterStream] = set()
        self.draining = False
        self.transferred_bytes = 0
        self.load = pb.Load()
        self.engine = EngineThread(engine, self._stepped, on_fatal)
        self._kinds = kinds
        self._channels: dict[str, grpc.aio.Channel] = {}

    @property
    def idle(self) -> bool:
        """Nothing runs here and nobody may still pull from here."""
        return not self.legs and not self.leases.held

    def start(self, message: pb.Start, stream: RouterStream) -> None:
        """Begin a leg. A lower attempt than the highest seen is ignored, a higher one replaces what runs."""
        key = (message.request, message.attempt)
        current = next((leg for leg in self.legs.values() if leg.key[0] == key[0]), None)
        if current is not None and current.key[1] >= key[1]:
            return
        if current is not None:
            current.cancel()
        kind = self._kinds.get(message.leg)
        refusal = self._refusal(message, kind)
        if refusal is not None:
            stream.put(pb.Event(request=key[0], attempt=key[1], failed=refusal))
            stream.flush()
            return
        try:
            request = request_of(message, self.fingerprint, self.model.eos_token_id)
        except RequestError as error:
            refusal = pb.Failed(reason=pb.INVALID, message=str(error))
            stream.put(pb.Event(request=key[0], attempt=key[1], failed=refusal))
            stream.flush()
            return
        assert kind is not None
        leg = self.legs[key] = kind(self, request, message, stream)
        leg.run(leg.begin())

    def cancel(self, request: str, attempt: int) -> None:
        """End a leg and all lower attempts of it."""
        for key in [k for k in self.legs if k[0] == request and k[1] <= attempt]:
            self.legs[key].cancel()

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
        if address not in self._channels:
            self._channels[address] = grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        return self._channels[address]

    def info(self) -> pb.WorkerInfo:
        """What routers must know."""
        return pb.WorkerInfo(
            role=self.role,
            instance=self.instance,
            fingerprint=self.fingerprint,
            max_model_len=self.engine_limits.max_model_len,
            vocab_size=self.model.vocab_size,
            eos_token_id=self.model.eos_token_id,
            load=self.load,
        )

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

    def _refusal(self, message: pb.Start, kind: type[Leg] | None) -> pb.Failed | None:
        if kind is None:
            return pb.Failed(reason=pb.INVALID, message=f"a {self.role} worker does no {pb.Leg.Name(message.leg)} leg")
        if self.draining:
            return pb.Failed(reason=pb.DRAINING, message="this worker is about to stop")
        return None

    def _stepped(self, events: list[Event], load: pb.Load) -> None:
        for event in events:
            leg = self.legs.get(event.request.key)
            if leg is not None:
                leg.on_event(event)
        self.load = load
        self.publish()

    def _lease_ended(self, lease: Lease, reason: str) -> None:
        for leg in [leg for leg in self.legs.values() if leg.key[0] == lease.request]:
            leg.lease_ended(lease, reason)
