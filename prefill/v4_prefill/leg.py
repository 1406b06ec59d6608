"""The prefill leg: computes a prompt, leases its cache, and samples the first token of each choice."""

from v4_core.v1 import worker_pb2 as pb
from v4_engine.events import Admitted, Event, Parked, Progress
from v4_kvtransfer.leases import End, Lease
from v4_worker.leg import STOPPING, Leg
from v4_worker.messages import event_of, first_of


class PrefillLeg(Leg):
    """Ends when its lease ends. The lease is granted at admission and advanced after every step."""

    lease: Lease | None = None

    def on_event(self, event: Event) -> None:
        """Handle an event of the engine about this request."""
        leases = self.context.leases
        if isinstance(event, Admitted):
            self.waits = False
            self.lease = leases.grant(*self.key[:2], self.request.tokens)
            started = pb.Started(cached_tokens=event.cached, lease=self.lease.id)
            self.stream.put(event_of(self.request, started=started))
        elif self.lease is not None and isinstance(event, Progress):
            leases.progress(self.lease.id, event.slots, event.complete)
        elif self.lease is not None and isinstance(event, Parked):
            leases.finish(self.lease.id, event.slots, event.tail, [first_of(t) for t in event.firsts])
        else:
            super().on_event(event)

    def prompt_computed(self, now: float) -> None:
        """End the last span, because the cache is complete. The decode worker records a span for the transfer."""
        self.spans.end("finished", now)

    def being_read(self) -> bool:
        """Whether a decode worker is pulling the complete cache."""
        return self.lease is not None and self.context.leases.in_transfer(self.lease)

    def complete(self) -> None:
        """Drop the lease, because all choices finished with their first token. This ends the leg."""
        if self.lease is not None:
            self.context.leases.drop(self.lease.id, "unneeded")

    def hand_back(self) -> None:
        """Fail the leg: another worker must compute the prompt again, because the cache ends with this process."""
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
