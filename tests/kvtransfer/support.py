"""What the tests of a transfer share: geometries, filled memories, a loopback provider."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import numpy as np

from tests.tiny_config import CONFIG
from v4_core.geometry import CacheGeometry, Region
from v4_core.profiles import model_config
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer.leases import Lease, LeaseTable
from v4_kvtransfer.memory import Bytes, HostMemory
from v4_kvtransfer.provider import TransferService

FINGERPRINT = "f" * 64
TINY = CONFIG
FLASH = model_config("flash")
EMPTY = 0xEE  # what memory holds before a test writes it


def tiny(slack: int = 0, draft_layers: int = 0) -> CacheGeometry:
    """The tiny model in fp32, the storage of most tests."""
    return CacheGeometry(TINY, "fp32", "fp32", slack=slack, draft_layers=draft_layers)


def filled(geometry: CacheGeometry, slots: int, tails: int = 1, seed: int | None = None) -> HostMemory:
    """A memory of random bytes, or of EMPTY where no seed is given."""
    shapes = ((slots, geometry.slab_bytes), (tails, geometry.tail_bytes))
    if seed is None:
        slabs, tail = (np.full(shape, EMPTY, np.uint8) for shape in shapes)
    else:
        rng = np.random.default_rng(seed)
        slabs, tail = (rng.integers(0, 256, shape, np.uint8) for shape in shapes)
    return HostMemory(geometry, slabs, tail)


def positions(geometry: CacheGeometry, tokens: int, tail: Bytes) -> dict[tuple[str, int, int], bytes]:
    """Every tail row that exists at `tokens`, by (kind, layer, position): read straight from the regions, no spans."""
    rows = {}
    for region in geometry.tail_regions:
        if region.kind == "residual":
            rows[region.kind, region.layer, 0] = _row(region, 0, tail)
            continue
        for position in _live(geometry, region.kind, region.layer, tokens):
            raw = _row(region, position % region.rows, tail)
            half = region.kind.endswith("state") and region.layer in geometry.config.layers_of(4)
            closed = position < tokens // 4 * 4
            rows[region.kind, region.layer, position] = raw[: len(raw) // 2] if half and closed else raw
    return rows


def _live(geometry: CacheGeometry, kind: str, layer: int, tokens: int) -> range:
    if kind == "raw":
        return range(max(0, tokens - geometry.config.window), tokens)
    if layer in geometry.config.layers_of(128):
        return range(tokens // 128 * 128, tokens)
    return range(max(0, tokens // 4 * 4 - 4), tokens)


def _row(region: Region, index: int, tail: Bytes) -> bytes:
    page, row = divmod(index, region.page_rows)
    base, raw = region.offset + page * region.page_bytes, b""
    for part in region.row.parts:
        raw += tail[base + row * part : base + (row + 1) * part].tobytes()
        base += region.page_rows * part
    return raw


@dataclass
class Provider:
    """A provider on loopback, with the ends that its leases came to."""

    memory: HostMemory
    keepalive: float = 0.05
    ended: list[tuple[int, str]] = field(default_factory=list)
    ttl: float = 30.0
    sent: list[int] = field(default_factory=list)  # bytes of caches, as they went

    def __post_init__(self) -> None:
        self.leases = LeaseTable(self.ttl, lambda lease, end: self.ended.append((lease.id, end)))
        self.service = TransferService(self.memory, self.leases, FINGERPRINT, self.keepalive, self.sent.append)

    @contextlib.asynccontextmanager
    async def channel(self) -> AsyncIterator[grpc.aio.Channel]:
        """Serve, and connect."""
        self.server = grpc.aio.server()
        self.service.add_to(self.server)
        port = self.server.add_insecure_port("127.0.0.1:0")
        await self.server.start()
        try:
            async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
                yield channel
        finally:
            await self.server.stop(0)

    def lease(self, tokens: int, slots: Sequence[int], request: str = "r") -> Lease:
        """A finished lease."""
        lease = self.leases.grant(request, 0, tokens)
        self.leases.finish(lease.id, slots, 0, [pb.First(choice=0, id=7)])
        return lease


def pull_request(lease: Lease, /, attempt: int = 0, have_blocks: int = 0, **changed: Any) -> pb.PullRequest:
    """What the puller of this lease asks."""
    fields: dict[str, Any] = {
        "request": lease.request,
        "attempt": attempt,
        "lease": lease.id,
        "fingerprint": FINGERPRINT,
        "tokens": lease.tokens,
        "have_blocks": have_blocks,
    }
    return pb.PullRequest(**(fields | changed))
