"""Combines what the routers report about their workers. Pure; there may be no answer at all."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from v4_core.kubernetes import Json


@dataclass(frozen=True)
class FleetView:
    """The answers of all routers that could be reached."""

    answers: Sequence[Json]

    def served(self, revision: str) -> bool:
        """Whether some router has probed the revision successfully and has a pair of its workers now.

        A probe is a short request through prefill, transfer and decode.
        """
        return any(entry.get("probed") for entry in self._of(revision))

    def served_by_all(self, revision: str) -> bool:
        """Whether at least one router answered and all that answered have probed the revision successfully."""
        probed = [entry for entry in self._of(revision) if entry.get("probed")]
        return 0 < len(self.answers) == len(probed)

    def error(self, revision: str) -> str:
        """The error of the revision's last failed probe; empty if no probe failed."""
        return next((str(entry["error"]) for entry in self._of(revision) if entry.get("error")), "")

    @property
    def unseen(self) -> str:
        """The error of a router that cannot watch pods and so finds no new workers; empty if all can."""
        return next((str(answer["router"]["error"]) for answer in self.answers if answer["router"].get("error")), "")

    def keys_since(self, routers: int) -> str | None:
        """The oldest time (RFC 3339) at which one of the routers loaded its API keys.

        Returns an empty text if a router has no keys, and None until `routers` routers have answered.
        """
        times = [str(answer["router"].get("keys_since") or "") for answer in self.answers]
        return min(times) if times and len(times) >= routers else None

    def transport(self, revision: str) -> str:
        """The transport of the revision's cache transfers; empty if there was no transfer yet."""
        return next((str(entry["transport"]) for entry in self._of(revision) if entry.get("transport")), "")

    def bytes_per_second(self, revision: str) -> float:
        """The mean rate of all transfers that the routers saw; 0 if there was none."""
        entries = list(self._of(revision))
        seconds = sum(float(entry.get("transfer_seconds") or 0) for entry in entries)
        return sum(int(entry.get("transferred_bytes") or 0) for entry in entries) / seconds if seconds > 0 else 0.0

    def workers(self, role: str, revision: str) -> list[Json]:
        """The workers of this role that a router is connected to, each once."""
        found = {
            str(worker.get("address")): worker
            for answer in self.answers
            for worker in answer.get("workers") or ()
            if worker.get("role") == role and worker.get("revision") == revision and worker.get("up")
        }
        return [found[address] for address in sorted(found)]

    def slots(self, role: str, revision: str) -> list[int]:
        """The block slots of each connected worker that is not terminating."""
        loads = (worker.get("load") or {} for worker in self.workers(role, revision) if not worker.get("leaving"))
        return [int(load["slots_total"]) for load in loads if load.get("slots_total")]

    def _of(self, revision: str) -> Iterable[Json]:
        return (
            entry
            for answer in self.answers
            for entry in answer.get("revisions") or ()
            if entry.get("revision") == revision
        )
