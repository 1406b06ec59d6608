"""The tensors of a checkpoint: which there must be, and reading them from safetensors shards (reference 3.1, 3.3).

Knows DeepSeek's names and transformers' names; gives DeepSeek's. Reads one shard at a time, so that peak memory is the
model and one shard. Knows nothing of how the forward wants them (params.py).
"""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from v4_core.config import C4, ModelConfig
from v4_engine.errors import WeightsError

Shapes = dict[str, tuple[int, ...]]
_DRAFT = "mtp."  # draft layers, which the engine does not run
_PLAIN = ("BF16", "F32", "F64", "I64", "I32")


def expected_shapes(config: ModelConfig) -> Shapes:
    """Name -> shape of every tensor of the main model, under DeepSeek's names."""
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


def weight_files(path: Path) -> list[Path]:
    """The safetensors shards of a checkpoint folder, in order. Raises WeightsError."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        try:
            names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        except (ValueError, KeyError, AttributeError) as error:
            raise WeightsError(f"{index} is not a safetensors index: {error}") from error
        files = [path / name for name in names]
        if lost := [file.name for file in files if not file.exists()]:
            raise WeightsError(f"{path} lacks shards that its index names: {', '.join(lost)}")
        return files
    files = sorted(path.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{path} holds no *.safetensors: give the folder of a DeepSeek V4 checkpoint")
    return files


def read(
    config: ModelConfig, files: list[Path], progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield (DeepSeek name, CPU tensor) of every expected tensor, shard by shard.

    `progress(done, total)` counts bytes. Raises WeightsError listing all missing, unexpected and misshapen tensors,
    before the first tensor is yielded.
    """
    if config.quantised:
        raise WeightsError("fp8 and fp4 checkpoints are not supported yet: convert the weights to bf16")
    _check(expected_shapes(config), files)
    total, done = sum(file.stat().st_size for file in files), 0
    for file in files:
        with safe_open(file, framework="pt") as shard:
            for name in shard.keys():  # noqa: SIM118 - safe_open is no mapping
                if name.startswith(_DRAFT):
                    continue
                tensor = shard.get_tensor(name)
                done += tensor.nbytes
                if progress:
                    progress(min(done, total), total)
                yield from _translate(name, tensor)
    if progress:
        progress(total, total)


def _check(expected: Shapes, files: list[Path]) -> None:
    found: Shapes = {}
    problems: list[str] = []
    for file in files:
        for name, shape, kind in _headers(file):
            if kind not in _PLAIN:
                problems.append(f"{name}: type {kind} is not supported")
            for ours, tensor in _translate(name, torch.empty(shape, device="meta")):
                if ours in found:
                    problems.append(f"{ours}: stored twice, again in {file.name}")
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
        raise WeightsError(f"the checkpoint's tensors do not fit its config.json:\n  {shown}{more}")


def _headers(file: Path) -> list[tuple[str, list[int], str]]:
    """(name, shape, type) of every tensor of a shard."""
    try:
        with safe_open(file, framework="pt") as shard:
            views = {name: shard.get_slice(name) for name in shard.keys()}  # noqa: SIM118
            return [(name, view.get_shape(), view.get_dtype()) for name, view in views.items()]
    except OSError as error:
        raise WeightsError(f"cannot read {file}: {error}") from error
    except SafetensorError as error:
        raise WeightsError(f"{file} is no readable safetensors file: {error}") from error


_RENAMES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"^model\.embed_tokens\.", "embed."),
        (r"^lm_head\.", "head."),
        (r"^model\.norm\.", "norm."),
        (r"^model\.hc_head\.hc_(fn|base|scale)$", r"hc_head_\1"),
        (r"^model\.layers\.", "layers."),
        (r"\.input_layernorm\.", ".attn_norm."),
        (r"\.post_attention_layernorm\.", ".ffn_norm."),
        (r"\.(attn|ffn)_hc\.(fn|base|scale)$", r".hc_\1_\2"),
        (r"\.self_attn\.compressor\.indexer\.q_b_proj\.", ".attn.indexer.wq_b."),
        (r"\.self_attn\.compressor\.indexer\.scorer\.weights_proj\.", ".attn.indexer.weights_proj."),
        (r"\.self_attn\.compressor\.indexer\.", ".attn.indexer.compressor."),
        (r"\.self_attn\.compressor\.", ".attn.compressor."),
        (r"\.self_attn\.sinks$", ".attn.attn_sink"),
        (r"\.self_attn\.q_a_proj\.", ".attn.wq_a."),
        (r"\.self_attn\.q_a_norm\.", ".attn.q_norm."),
        (r"\.self_attn\.q_b_proj\.", ".attn.wq_b."),
        (r"\.self_attn\.kv_proj\.", ".attn.wkv."),
        (r"\.self_attn\.kv_norm\.", ".attn.kv_norm."),
        (r"\.self_attn\.o_([ab])_proj\.", r".attn.wo_\1."),
        (r"compressor\.kv_proj\.", "compressor.wkv."),
        (r"compressor\.gate_proj\.", "compressor.wgate."),
        (r"compressor\.kv_norm\.", "compressor.norm."),
        (r"compressor\.position_bias$", "compressor.ape"),
        (r"\.mlp\.gate\.e_score_correction_bias$", ".ffn.gate.bias"),
        (r"\.mlp\.shared_experts\.gate_proj\.", ".ffn.shared_experts.w1."),
        (r"\.mlp\.shared_experts\.up_proj\.", ".ffn.shared_experts.w3."),
        (r"\.mlp\.shared_experts\.down_proj\.", ".ffn.shared_experts.w2."),
        (r"\.mlp\.", ".ffn."),
    )
]


def _translate(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    """A stored tensor as DeepSeek's: renamed, transformers' fused experts taken apart, draft layers left out."""
    if name.startswith(_DRAFT):
        return
    for pattern, replacement in _RENAMES:
        name = pattern.sub(replacement, name)
    if name.endswith("ffn.experts.gate_up_proj"):
        for e, fused in enumerate(tensor):
            gate, up = fused.chunk(2)
            yield name.replace("gate_up_proj", f"{e}.w1.weight"), gate
            yield name.replace("gate_up_proj", f"{e}.w3.weight"), up
    elif name.endswith("ffn.experts.down_proj"):
        for e, down in enumerate(tensor):
            yield name.replace("down_proj", f"{e}.w2.weight"), down
    else:
        yield name, tensor
