"""What the routers say of their fleets, put together. Pure; no router may have answered."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from v4_core.kubernetes import Json


@dataclass(frozen=True)
class FleetView:
    """The answers of all routers that could be asked."""

    answers: Sequence[Json]

    def served(self, revision: str) -> bool:
        """Whether some router had a token through prefill, transfer and decode of it, and has a pair now."""
        return any(entry.get("probed") for entry in self._of(revision))

    def served_by_all(self, revision: str) -> bool:
        """Whether every router did, and at least one answered."""
        probed = [entry for entry in self._of(revision) if entry.get("probed")]
        return 0 < len(self.answers) == len(probed)

    def error(self, revision: str) -> str:
        """Why a probe of it failed last; empty if none did."""
        return next((str(entry["error"]) for entry in self._of(revision) if entry.get("error")), "")

    @property
    def unseen(self) -> str:
        """Why some router cannot see pods, in its words, so that it finds no new worker; empty if all can."""
        return next((str(answer["router"]["error"]) for answer in self.answers if answer["router"].get("error")), "")

    def keys_since(self, routers: int) -> str | None:
        """When the last of so many routers got its API keys, RFC 3339; empty without keys, None until all answer."""
        times = [str(answer["router"].get("keys_since") or "") for answer in self.answers]
        return min(times) if times and len(times) >= routers else None

    def transport(self, revision: str) -> str:
        """How caches travel within it; empty if none did yet."""
        return next((str(entry["transport"]) for entry in self._of(revision) if entry.get("transport")), "")

    def bytes_per_second(self, revision: str) -> float:
        """Of all transfers that the routers saw; 0 if there was none."""
        entries = list(self._of(revision))
        seconds = sum(float(entry.get("transfer_seconds") or 0) for entry in entries)
        return sum(int(entry.get("transferred_bytes") or 0) for entry in entries) / seconds if seconds > 0 else 0.0

    def workers(self, role: str, revision: str) -> list[Json]:
        """Each worker of this role that a router has a connection to, once."""
        found = {
            str(worker.get("address")): worker
            for answer in self.answers
            for worker in answer.get("workers") or ()
            if worker.get("role") == role and worker.get("revision") == revision and worker.get("up")
        }
        return [found[address] for address in sorted(found)]

    def slots(self, role: str, revision: str) -> list[int]:
        """Block slots of each such worker that stays."""
        loads = (worker.get("load") or {} for worker in self.workers(role, revision) if not worker.get("leaving"))
        return [int(load["slots_total"]) for load in loads if load.get("slots_total")]

    def _of(self, revision: str) -> Iterable[Json]:
        return (
            entry
            for answer in self.answers
            for entry in answer.get("revisions") or ()
            if entry.get("revision") == revision
        )
