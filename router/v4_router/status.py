"""The answer to `/fleet`, which the operator reads, and samples of the router's counters for `/facts`. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from importlib.metadata import version
from typing import Any

from prometheus_client import Counter, Histogram
from prometheus_client.samples import Sample as Value

from v4_core.v1 import worker_pb2 as pb
from v4_router.facts import Buckets, Sample
from v4_router.metrics import Metrics, Transferred, faulty
from v4_router.router import Router
from v4_router.workers import WorkerLink

_LOAD = tuple(field.name for field in pb.Load.DESCRIPTOR.fields)


def fleet_status(router: Router) -> dict[str, Any]:
    """Returns the answer to `/fleet`: the state of the router, its workers and its revisions."""
    links = list(router.fleet.links.values())
    revisions = sorted({link.endpoint.revision for link in links})
    paired = {revision for revision, _ in router.fleet.pairs()}
    return {
        "router": {
            "version": version("v4serve"),
            "served_name": router.config.served_name,
            "ready": router.ready,
            "requests": router.requests,
            "error": router.unseen(),
            "keys_since": _timestamp(router.keys.written) if router.keys else "",
            **_transferred(router.metrics.transferred_in_all),
        },
        "workers": [_worker(link) for link in links],
        "revisions": [_revision(name, name in paired, links, router.metrics.transfers) for name in revisions],
    }


def _timestamp(time: datetime | None) -> str:
    """Returns the time in Kubernetes's format, or "" for None."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ") if time else ""


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
    """Returns "ready" if the worker takes requests, else the first reason why it does not."""
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
    """`paired`: whether the revision has a prefill and a decode worker that take requests.

    Such a prefill worker has been probed: a token went through it, a transfer and a decode worker.
    """
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


def sample(metrics: Metrics, at: float) -> Sample:
    """Returns the counters' present values as a sample at the time `at`, in seconds."""
    moved = metrics.transferred_in_all
    return Sample(
        at=at,
        requests=_total(metrics.requests),
        failed=sum(one.value for one in _values(metrics.requests) if faulty(one.labels["outcome"])),
        prompt_tokens=_total(metrics.prompt_tokens),
        cached_tokens=_total(metrics.cached_tokens),
        generated_tokens=_total(metrics.generated_tokens),
        ttft=_buckets(metrics.ttft),
        itl=_buckets(metrics.itl),
        transfers=moved.count,
        transferred_bytes=moved.bytes,
        transfer_seconds=moved.seconds,
        retries=_total(metrics.retries),
        recomputations=_total(metrics.recomputations),
        migrations=_total(metrics.migrations),
    )


def _total(counter: Counter) -> float:
    return sum(one.value for one in _values(counter))


def _buckets(histogram: Histogram) -> Buckets:
    return {float(one.labels["le"]): one.value for one in _values(histogram) if "le" in one.labels}


def _values(metric: Counter | Histogram) -> Iterator[Value]:
    return (one for family in metric.collect() for one in family.samples)
