"""The weights in the layout of the forward pass: matrices that multiply the same input are stacked into one.

Types: `compute` (bf16, fp32 or fp64) for linear layers; `acc` (fp64 if `compute` is fp64, otherwise fp32) for norms,
hyper-connections, the compressor, the router gate and the head (reference 3.2).
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from v4_core.config import C4, ModelConfig
from v4_engine.errors import WeightsError


@dataclass(frozen=True)
class Hyper:
    """One hyper-connection: fn [(2+M)M, M*D] (head: [M, M*D]), base and scale, all in `acc`."""

    fn: Tensor
    base: Tensor
    scale: Tensor  # one value per row of fn


@dataclass(frozen=True)
class Compressor:
    """One compressor of width w.

    Its rows of the stacked state projection are [kv, score] of each half of the channels.
    """

    ape: Tensor  # [ratio, c*2w] acc; the kv columns are zero, so that it can be added to a state row
    norm: Tensor  # [w] acc


@dataclass(frozen=True)
class Layer:
    """One layer. Shapes use the reference's letters; `N` rows of in_proj are Q + d (+ Hi in C4 layers)."""

    ratio: int
    attn_hc: Hyper
    ffn_hc: Hyper
    attn_norm: Tensor  # [D] acc
    ffn_norm: Tensor  # [D] acc
    in_proj: Tensor  # [N, D]: wq_a, wkv, indexer weights_proj
    state_proj: Tensor | None  # [4d + 4di or 2d, D] acc: main compressor, then indexer compressor
    q_norm: Tensor  # [Q] acc
    kv_norm: Tensor  # [d] acc
    q_proj: Tensor  # [H*d (+ Hi*di), Q]: wq_b, indexer wq_b
    sinks: Tensor  # [H] acc
    wo_a: Tensor  # [G, R, H*d/G]
    wo_b: Tensor  # [D, G*R]
    compressor: Compressor | None
    indexer: Compressor | None
    gate: Tensor  # [E, D] acc
    gate_bias: Tensor | None  # [E] acc
    tid2eid: Tensor | None  # [vocab, K] int64
    w13: Tensor  # [E, 2I, D]: gate, then up
    w2: Tensor  # [E, D, I]
    shared_w13: Tensor  # [2I, D]
    shared_w2: Tensor  # [D, I]


@dataclass(frozen=True)
class Params:
    """The weights of the whole model."""

    embed: Tensor  # [vocab, D]
    head: Tensor  # [vocab, D] acc
    norm: Tensor  # [D] acc
    head_hc: Hyper
    layers: tuple[Layer, ...]


class _Builder:
    """Allocates stacked tensors and records which view of them each checkpoint tensor fills."""

    def __init__(self, device: torch.device, compute: torch.dtype) -> None:
        self.device = device
        self.compute = compute
        self.acc = torch.float64 if compute == torch.float64 else torch.float32
        self.views: dict[str, Tensor] = {}
        self.spread: dict[str, tuple[Tensor, ...]] = {}  # checkpoint tensors whose values each fill one view

    def one(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Allocate one tensor of the checkpoint unchanged, in `acc` unless a type is given."""
        tensor = torch.empty(shape, dtype=dtype or self.acc, device=self.device)
        self.views[name] = tensor
        return tensor

    def rows(self, parts: Iterable[tuple[str, int]], columns: int) -> Tensor:
        """Allocate matrices of equal width, stacked by rows, in `compute`."""
        parts = list(parts)
        stacked = torch.empty(sum(n for _, n in parts), columns, dtype=self.compute, device=self.device)
        for (name, _), view in zip(parts, stacked.split([n for _, n in parts]), strict=True):
            self.views[name] = view
        return stacked

    def hyper(self, prefix: str, groups: tuple[int, ...], columns: int) -> Hyper:
        """Allocate a hyper-connection.

        The checkpoint has one scale per group of fn's rows; here every row has its own.
        """
        outputs = sum(groups)
        scale = torch.empty(outputs, dtype=self.acc, device=self.device)
        self.spread[prefix + "scale"] = scale.split(groups)
        return Hyper(self.one(prefix + "fn", outputs, columns), self.one(prefix + "base", outputs), scale)

    def compressor(self, prefix: str, ratio: int, width: int, projection: Tensor) -> Compressor:
        """Allocate a compressor. `projection` [halves*2*w, D] is its part of state_proj, ordered like a state row."""
        halves = 2 if ratio == C4 else 1
        by_half = projection.view(halves, 2, width, -1)
        self.views[prefix + "wkv.weight"], self.views[prefix + "wgate.weight"] = by_half[:, 0], by_half[:, 1]
        ape = torch.zeros(ratio, halves, 2, width, dtype=self.acc, device=self.device)
        self.views[prefix + "ape"] = ape[:, :, 1]
        return Compressor(ape.view(ratio, -1), self.one(prefix + "norm.weight", width))

    def layer(self, c: ModelConfig, index: int) -> Layer:
        ratio, prefix, m, d, inner = (
            c.ratios[index],
            f"layers.{index}.",
            c.hc_mult,
            c.hidden_size,
            c.moe_intermediate_size,
        )
        attn, ffn = prefix + "attn.", prefix + "ffn."
        in_parts = [(attn + "wq_a.weight", c.q_lora_rank), (attn + "wkv.weight", c.head_dim)]
        q_parts = [(attn + "wq_b.weight", c.num_heads * c.head_dim)]
        state_proj = compressor = indexer = None
        if ratio:
            main, extra = (4 * c.head_dim, 4 * c.index_dim) if ratio == C4 else (2 * c.head_dim, 0)
            state_proj = torch.empty(main + extra, d, dtype=self.acc, device=self.device)
            compressor = self.compressor(attn + "compressor.", ratio, c.head_dim, state_proj[:main])
        if ratio == C4:
            assert state_proj is not None
            indexer = self.compressor(attn + "indexer.compressor.", ratio, c.index_dim, state_proj[4 * c.head_dim :])
            in_parts.append((attn + "indexer.weights_proj.weight", c.index_heads))
            q_parts.append((attn + "indexer.wq_b.weight", c.index_heads * c.index_dim))
        hashed = index < c.num_hash_layers
        experts = range(c.n_routed_experts)
        w13 = self.rows(((f"{ffn}experts.{e}.{w}.weight", inner) for e in experts for w in ("w1", "w3")), d)
        w2 = self.rows(((f"{ffn}experts.{e}.w2.weight", d) for e in experts), inner)
        wo_a = self.rows([(attn + "wo_a.weight", c.o_groups * c.o_lora_rank)], c.num_heads * c.head_dim // c.o_groups)
        tid2eid = (c.vocab_size, c.experts_per_token)
        return Layer(
            ratio=ratio,
            attn_hc=self.hyper(prefix + "hc_attn_", (m, m, m * m), m * d),
            ffn_hc=self.hyper(prefix + "hc_ffn_", (m, m, m * m), m * d),
            attn_norm=self.one(prefix + "attn_norm.weight", d),
            ffn_norm=self.one(prefix + "ffn_norm.weight", d),
            in_proj=self.rows(in_parts, d),
            state_proj=state_proj,
            q_norm=self.one(attn + "q_norm.weight", c.q_lora_rank),
            kv_norm=self.one(attn + "kv_norm.weight", c.head_dim),
            q_proj=self.rows(q_parts, c.q_lora_rank),
            sinks=self.one(attn + "attn_sink", c.num_heads),
            wo_a=wo_a.view(c.o_groups, c.o_lora_rank, -1),
            wo_b=self.rows([(attn + "wo_b.weight", d)], c.o_groups * c.o_lora_rank),
            compressor=compressor,
            indexer=indexer,
            gate=self.one(ffn + "gate.weight", c.n_routed_experts, d),
            gate_bias=None if hashed else self.one(ffn + "gate.bias", c.n_routed_experts),
            tid2eid=self.one(ffn + "gate.tid2eid", *tid2eid, dtype=torch.int64) if hashed else None,
            w13=w13.view(c.n_routed_experts, 2 * inner, d),
            w2=w2.view(c.n_routed_experts, d, inner),
            shared_w13=self.rows([(f"{ffn}shared_experts.{w}.weight", inner) for w in ("w1", "w3")], d),
            shared_w2=self.rows([(ffn + "shared_experts.w2.weight", d)], inner),
        )  # fmt: skip


def build(
    config: ModelConfig, tensors: Iterable[tuple[str, Tensor]], compute: torch.dtype, device: torch.device
) -> Params:
    """Allocate Params and fill them from tensors with DeepSeek's names.

    Each tensor is copied before the next one is taken, so only one needs to be in memory.
    """
    builder = _Builder(device, compute)
    d = config.hidden_size
    params = Params(
        embed=builder.one("embed.weight", config.vocab_size, d, dtype=compute),
        head=builder.one("head.weight", config.vocab_size, d),
        norm=builder.one("norm.weight", d),
        head_hc=builder.hyper("hc_head_", (config.hc_mult,), config.hc_mult * d),
        layers=tuple(builder.layer(config, i) for i in range(config.num_layers)),
    )
    for name, tensor in tensors:
        if name in builder.spread:
            for view, value in zip(builder.spread.pop(name), tensor, strict=True):
                view.fill_(value)
            continue
        view = builder.views.pop(name)
        view.copy_(tensor.view(view.shape))
        if name.endswith("tid2eid") and not 0 <= int(view.min()) <= int(view.max()) < config.n_routed_experts:
            raise WeightsError(f"{name} names experts outside 0..{config.n_routed_experts - 1}")
    if missing := sorted(builder.views.keys() | builder.spread.keys()):
        raise WeightsError(f"tensors are missing: {', '.join(missing[:5])}")
    return params
