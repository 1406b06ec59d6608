"""A prompt comes in; a leased cache and the first token of each choice go out."""

from v4_core.v1 import worker_pb2 as pb
from v4_engine.events import Admitted, Event, Parked, Progress
from v4_kvtransfer.leases import End, Lease
from v4_worker.leg import STOPPING, Leg
from v4_worker.messages import event, first_of


class PrefillLeg(Leg):
    """Lives until its lease ends. The lease begins when the engine admits the prompt and is told of every step."""

    lease: Lease | None = None

    def on_event(self, happened: Event) -> None:
        """What the engine says of this request."""
        leases = self.worker.leases
        if isinstance(happened, Admitted):
            self.waits = False
            self.lease = leases.grant(*self.key[:2], self.request.tokens)
            started = pb.Started(cached_tokens=happened.cached, lease=self.lease.id)
            self.stream.put(event(self.request, started=started))
        elif self.lease is not None and isinstance(happened, Progress):
            leases.progress(self.lease.id, happened.slots, happened.complete)
        elif self.lease is not None and isinstance(happened, Parked):
            leases.finish(self.lease.id, happened.slots, happened.tail, [first_of(t) for t in happened.firsts])
        else:
            super().on_event(happened)

    def computed(self, now: float) -> None:
        """The cache is whole; whoever pulls it is another one's span."""
        self.phases.end("finished", now)

    def being_read(self) -> bool:
        """Whether a decode worker is about to have the whole cache."""
        return self.lease is not None and self.worker.leases.in_transfer(self.lease)

    def complete(self) -> None:
        """Every choice has ended with its first token. The lease ends, and with it this leg: no pull reads on."""
        if self.lease is not None:
            self.worker.leases.drop(self.lease.id, "unneeded")

    def hand_back(self) -> None:
        """The router has the first tokens at most, and nobody gets the cache: all of it is to be done elsewhere."""
        self.fail(pb.DRAINING, STOPPING)

    def lease_ended(self, lease: Lease, end: End) -> None:
        """The cache was adopted elsewhere, or nobody came for it."""
        if lease is not self.lease or self.ended:
            return
        if end == "expired":
            self.fail(pb.TRANSFER, f"no decode worker pulled the cache within {self.worker.config.lease_seconds:g} s")
        else:
            self.cancel()

    def close(self) -> None:
        """The leg is over, and so is its lease."""
        super().close()
        if self.lease is not None:
            self.worker.leases.drop(self.lease.id)
