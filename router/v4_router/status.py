"""What a router knows of its workers, as `/fleet` tells it to the operator, the page and `v4serve top`. Pure."""

from collections.abc import Iterable, Mapping
from importlib.metadata import version
from typing import Any

from v4_core.v1 import worker_pb2 as pb
from v4_router.metrics import Transferred
from v4_router.router import Router
from v4_router.workers import WorkerLink

_LOAD = tuple(field.name for field in pb.Load.DESCRIPTOR.fields)


def fleet_status(router: Router) -> dict[str, Any]:
    """Router, workers, revisions."""
    links = list(router.fleet.links.values())
    revisions = sorted({link.endpoint.revision for link in links})
    paired = {revision for revision, _ in router.fleet.pairs()}
    return {
        "router": {
            "version": version("v4serve"),
            "served_name": router.config.served_name,
            "ready": router.ready,
            "requests": router.requests,
            **_transferred(router.metrics.transferred_in_all),
        },
        "workers": [_worker(link) for link in links],
        "revisions": [_revision(name, name in paired, links, router.metrics.transfers) for name in revisions],
    }


def _worker(link: WorkerLink) -> dict[str, Any]:
    endpoint = link.endpoint
    return {
        "address": link.address,
        "pod": endpoint.pod,
        "role": link.role,
        "revision": endpoint.revision,
        "up": link.up,
        "ready": endpoint.ready,
        "leaving": endpoint.leaving,
        "routable": link.usable,
        "probed": link.probed,
        "state": _state(link),
        "error": link.error,
        "fingerprint": link.info.fingerprint,
        "instance": link.info.instance,
        "max_model_len": link.info.max_model_len,
        "load": {name: getattr(link.load, name) for name in _LOAD},
    }


def _state(link: WorkerLink) -> str:
    """Whether it takes requests, or else the first thing that stands in the way."""
    if not link.up:
        return "down"
    if link.endpoint.leaving or link.load.draining:
        return "draining"
    if not link.endpoint.ready:
        return "not ready"
    return "ready" if link.probed else "unproven"


def _revision(
    name: str, paired: bool, links: Iterable[WorkerLink], transfers: Mapping[str, Transferred]
) -> dict[str, Any]:
    """`paired`: a prefill worker takes requests, so a token went from there through a transfer and decode, and there is
    decode for it now."""
    expected = [e for e in links if e.endpoint.revision == name and e.endpoint.ready and not e.endpoint.leaving]
    return {
        "revision": name,
        "probed": paired,
        "error": next((link.error for link in expected if not link.usable and link.error), ""),
        "transport": "grpc",
        **_transferred(transfers.get(name, Transferred())),
    }


def _transferred(sums: Transferred) -> dict[str, float]:
    return {"transfers": sums.count, "transferred_bytes": sums.bytes, "transfer_seconds": sums.seconds}
