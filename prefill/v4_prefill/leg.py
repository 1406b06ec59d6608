"""The prefill leg: computes a prompt, leases its cache, and samples the first token of each choice."""

from v4_core.v1 import worker_pb2 as pb
from v4_engine.events import Admitted, Event, Parked, Progress
from v4_kvtransfer.leases import End, Lease
from v4_worker.leg import STOPPING, Leg
from v4_worker.messages import event, first_of


class PrefillLeg(Leg):
    """Ends when its lease ends. The lease is granted at admission and advanced after every step."""

    lease: Lease | None = None

    def on_event(self, happened: Event) -> None:
        """Handle an event of the engine about this request."""
        leases = self.context.leases
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
        """The cache is complete. The transfer is a span of the decode worker."""
        self.spans.end("finished", now)

    def being_read(self) -> bool:
        """Whether a decode worker is pulling the complete cache."""
        return self.lease is not None and self.context.leases.in_transfer(self.lease)

    def complete(self) -> None:
        """All choices finished with their first token. Drops the unneeded lease, which ends the leg."""
        if self.lease is not None:
            self.context.leases.drop(self.lease.id, "unneeded")

    def hand_back(self) -> None:
        """Fail the leg. The router has at most the first tokens, and another worker must compute the prompt again."""
        self.fail(pb.DRAINING, STOPPING)

    def lease_ended(self, lease: Lease, end: End) -> None:
        """End the leg, because its cache was adopted by a decode worker or its lease expired."""
        if lease is not self.lease or self.ended:
            return
        if end == "expired":
            self.fail(pb.TRANSFER, f"no decode worker pulled the cache within {self.context.config.lease_seconds:g} s")
        else:
            self.cancel()

    def close(self) -> None:
        """Mark the leg as ended, and drop its lease."""
        super().close()
        if self.lease is not None:
            self.context.leases.drop(self.lease.id)
