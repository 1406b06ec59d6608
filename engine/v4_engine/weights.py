"""Reading a checkpoint: which tensors it must have, reading them from safetensors shards, and hashing all their bytes.

Tensors get DeepSeek's names, whatever names the checkpoint uses (naming.py). They are read one at a time, so that peak
memory is the model and one tensor. Their layout in the engine is the matter of params.py.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import xxhash
from safetensors import SafetensorError, safe_open
from torch import Tensor

from v4_core.config import C4, ModelConfig
from v4_core.fingerprint import TensorDigest
from v4_core.shards import is_quantised
from v4_engine.errors import WeightsError
from v4_engine.naming import is_draft, translate

Shapes = dict[str, tuple[int, ...]]
_PLAIN = ("BF16", "F32", "F64", "I64", "I32")
_PIECE = 32_768  # values: torch reduces so few without threads, whose start takes ten times as long


def expected_shapes(config: ModelConfig) -> Shapes:
    """Return the shape of every tensor of the main model by DeepSeek's names."""
    c, d = config, config.hidden_size
    shapes: Shapes = {
        "embed.weight": (c.vocab_size, d),
        "head.weight": (c.vocab_size, d),
        "norm.weight": (d,),
    }
    shapes |= {"hc_head_fn": (c.hc_mult, c.hc_mult * d), "hc_head_base": (c.hc_mult,), "hc_head_scale": (1,)}
    for layer, ratio in enumerate(c.ratios):
        for name, shape in (_attention(c, ratio) | _moe(c, layer) | _hyper(c)).items():
            shapes[f"layers.{layer}.{name}"] = shape
    return shapes


def _hyper(c: ModelConfig) -> Shapes:
    m = c.hc_mult
    mixes = (2 + m) * m
    return {
        f"hc_{part}_{name}": shape
        for part in ("attn", "ffn")
        for name, shape in (("fn", (mixes, m * c.hidden_size)), ("base", (mixes,)), ("scale", (3,)))
    }


def _compressor(c: ModelConfig, prefix: str, ratio: int, width: int) -> Shapes:
    channels = 2 * width if ratio == C4 else width
    return {
        f"{prefix}.ape": (ratio, channels),
        f"{prefix}.wkv.weight": (channels, c.hidden_size),
        f"{prefix}.wgate.weight": (channels, c.hidden_size),
        f"{prefix}.norm.weight": (width,),
    }


def _attention(c: ModelConfig, ratio: int) -> Shapes:
    heads = c.num_heads * c.head_dim
    shapes: Shapes = {
        "attn_norm.weight": (c.hidden_size,),
        "ffn_norm.weight": (c.hidden_size,),
        "attn.attn_sink": (c.num_heads,),
        "attn.wq_a.weight": (c.q_lora_rank, c.hidden_size),
        "attn.q_norm.weight": (c.q_lora_rank,),
        "attn.wq_b.weight": (heads, c.q_lora_rank),
        "attn.wkv.weight": (c.head_dim, c.hidden_size),
        "attn.kv_norm.weight": (c.head_dim,),
        "attn.wo_a.weight": (c.o_groups * c.o_lora_rank, heads // c.o_groups),
        "attn.wo_b.weight": (c.hidden_size, c.o_groups * c.o_lora_rank),
    }
    if ratio:
        shapes |= _compressor(c, "attn.compressor", ratio, c.head_dim)
    if ratio == C4:
        shapes |= _compressor(c, "attn.indexer.compressor", ratio, c.index_dim)
        shapes["attn.indexer.wq_b.weight"] = (c.index_heads * c.index_dim, c.q_lora_rank)
        shapes["attn.indexer.weights_proj.weight"] = (c.index_heads, c.hidden_size)
    return shapes


def _moe(c: ModelConfig, layer: int) -> Shapes:
    shapes: Shapes = {"ffn.gate.weight": (c.n_routed_experts, c.hidden_size)}
    if layer < c.num_hash_layers:
        shapes["ffn.gate.tid2eid"] = (c.vocab_size, c.experts_per_token)
    else:
        shapes["ffn.gate.bias"] = (c.n_routed_experts,)
    for expert in ("shared_experts", *(f"experts.{e}" for e in range(c.n_routed_experts))):
        for name, shape in (("w1", (0, 1)), ("w3", (0, 1)), ("w2", (1, 0))):
            dims = (c.moe_intermediate_size, c.hidden_size)
            shapes[f"ffn.{expert}.{name}.weight"] = (dims[shape[0]], dims[shape[1]])
    return shapes


def read(
    config: ModelConfig, files: list[Path], progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield (DeepSeek name, CPU tensor) of every expected tensor, shard by shard.

    `progress(done, total)` counts bytes. Before the first tensor is yielded, raises WeightsError with all tensors that
    are missing, unexpected or of the wrong shape. Also raises WeightsError at a tensor that holds a NaN or an infinity.
    """
    _check(expected_shapes(config), files)
    total, done = sum(file.stat().st_size for file in files), 0
    for file in files:
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - safe_open is no mapping
                if is_draft(name):
                    continue
                tensor = shard.get_tensor(name)
                if not _finite(tensor):
                    raise WeightsError(
                        f"{file}: {name} holds a NaN or an infinity: download or convert the checkpoint again"
                    )
                done += tensor.nbytes
                if progress:
                    progress(min(done, total), total)
                yield from translate(name, tensor)
    if progress:
        progress(total, total)


def _finite(tensor: Tensor) -> bool:
    """Whether all values are finite.

    Looks at minimum and maximum only, which are both NaN if any value is: one pass without a copy, 40 times as fast as
    isfinite().
    """
    if not tensor.is_floating_point():
        return True
    pieces = (torch.aminmax(piece) for piece in tensor.reshape(-1).split(_PIECE) if len(piece))
    return all(math.isfinite(extreme.item()) for extremes in pieces for extreme in extremes)


def hashed(tensors: Iterable[tuple[str, Tensor]], digests: dict[str, TensorDigest]) -> Iterator[tuple[str, Tensor]]:
    """Yield the CPU tensors unchanged, and add the digest of each to `digests` under its name."""
    for name, tensor in tensors:
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy()
        dtype = str(tensor.dtype).removeprefix("torch.")
        digests[name] = TensorDigest(dtype, tuple(tensor.shape), xxhash.xxh3_128_digest(data.data))
        yield name, tensor


def _check(expected: Shapes, files: list[Path]) -> None:
    found: Shapes = {}
    problems: list[str] = []
    for file in files:
        for name, shape, kind in _headers(file):
            if is_draft(name):
                continue
            if is_quantised(kind):
                raise WeightsError(
                    f"{name} in {file} is {kind}, but fp8 and fp4 checkpoints are not supported yet: convert the "
                    "weights to bf16"
                )
            if kind not in _PLAIN:
                problems.append(f"{name}: type {kind} is not supported")
            for ours, tensor in translate(name, torch.empty(shape, device="meta")):
                if ours in found:
                    problems.append(f"{ours}: stored twice, the second time in {file.name}")
                found[ours] = tuple(tensor.shape)
    problems += [f"{name}: missing" for name in expected.keys() - found.keys()]
    problems += [f"{name}: unexpected" for name in found.keys() - expected.keys()]
    problems += [
        f"{name}: shape {list(found[name])}, expected {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    if problems:
        shown = "\n  ".join(sorted(problems)[:40])
        more = f"\n  and {len(problems) - 40} more" if len(problems) > 40 else ""
        raise WeightsError(f"the checkpoint's tensors do not match its config.json:\n  {shown}{more}")


def _headers(file: Path) -> list[tuple[str, list[int], str]]:
    """Return (name, shape, type) of every tensor of a shard."""
    try:
        with safe_open(file, framework="pt") as shard:
            views = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118
            return [(name, view.get_shape(), view.get_dtype()) for name, view in views.items()]
    except OSError as error:
        raise WeightsError(f"cannot read {file}: {error}") from error
    except SafetensorError as error:
        raise WeightsError(f"{file} is not a valid safetensors file: {error}") from error
