"""What the tests of a transfer share: geometries, filled memories, a loopback provider."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc.aio
import numpy as np

from v4_core.config import ModelConfig
from v4_core.geometry import CacheGeometry, Region
from v4_core.profiles import model_config
from v4_core.v1 import worker_pb2 as pb
from v4_kvtransfer.leases import Lease, LeaseTable
from v4_kvtransfer.memory import Bytes, HostMemory
from v4_kvtransfer.provider import TransferService

FINGERPRINT = "f" * 64
TINY = ModelConfig.from_dict(
    {
        "model_type": "deepseek_v4",
        "vocab_size": 512,
        "hidden_size": 64,
        "moe_intermediate_size": 32,
        "num_hidden_layers": 5,
        "num_attention_heads": 4,
        "head_dim": 32,
        "q_lora_rank": 24,
        "num_experts_per_tok": 2,
        "n_routed_experts": 8,
        "routed_scaling_factor": 1.5,
        "swiglu_limit": 10.0,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "compress_rope_theta": 160000.0,
        "qk_rope_head_dim": 8,
        "compress_ratios": [0, 4, 128, 4, 128],
        "num_hash_layers": 2,
        "sliding_window": 16,
        "o_groups": 2,
        "o_lora_rank": 16,
        "index_n_heads": 16,
        "index_head_dim": 16,
        "index_topk": 8,
        "hc_mult": 4,
        "hc_sinkhorn_iters": 20,
        "hc_eps": 1e-06,
        "rms_norm_eps": 1e-06,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
)
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

    def __post_init__(self) -> None:
        self.leases = LeaseTable(self.ttl, lambda lease, reason: self.ended.append((lease.id, reason)))
        self.service = TransferService(self.memory, self.leases, FINGERPRINT, self.keepalive)

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
