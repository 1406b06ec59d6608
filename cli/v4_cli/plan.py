"""`v4serve plan`: the cache memory of one sequence, and how many sequences fit. Needs no weights, device or torch."""

from dataclasses import asdict, dataclass
from typing import Annotated, Literal

import typer

from v4_cli.options import ConfigFile, Json
from v4_cli.output import binary_size, print_facts, print_json
from v4_core.config import C4, C128, SWA, ModelConfig
from v4_core.errors import ConfigError
from v4_core.geometry import CacheGeometry, ideal_bytes, v32_bytes
from v4_core.profiles import model_config
from v4_core.settings import Bytes, load

Format = Literal["bf16", "fp8", "fp32", "fp64"]
IndexFormat = Literal["bf16", "fp8", "fp4", "fp32", "fp64"]


@dataclass(frozen=True)
class MemoryPlanConfig:
    """Settings of `v4serve plan`. Raises ConfigError if a value cannot be used."""

    model: str  # name of a profile, or folder of a checkpoint
    context: int  # tokens of a sequence
    format: Format | None = None  # None = the checkpoint's own type
    index_format: IndexFormat | None = None  # None = the same as `format`
    memory: Bytes | None = None  # available for the caches of all sequences

    def __post_init__(self) -> None:
        if self.context < 1:
            raise ConfigError(f"context is {self.context}: give at least one token")


@dataclass(frozen=True)
class MemoryPlan:
    """The cache memory of one sequence, in bytes unless stated otherwise."""

    model: str
    layers: dict[str, int]  # number of layers by layer type
    context: int  # tokens
    format: str
    index_format: str
    ideal: dict[str, int]  # by layer type; each entry and each row of the windows counted once
    ideal_total: int
    slots: int  # number of block slots of the sequence
    slab: int  # of one slot
    tail: int  # of the live tail
    checkpoint: int  # of one packed tail
    checkpoint_slots: int  # number of slots that one checkpoint takes
    allocated: int  # of all slots and the live tail
    v32: int  # of a V3.2-style bf16 cache with the same number of layers
    v32_ratio: float  # v32 / ideal_total
    memory: int | None  # available for all sequences
    sequences: int | None  # number of sequences that fit in `memory`


def plan_memory(wanted: MemoryPlanConfig, config: ModelConfig) -> MemoryPlan:
    """Returns the memory of one sequence. Raises ConfigError if the model cannot be stored in the formats."""
    if wanted.context > config.max_position:
        raise ConfigError(f"context is {wanted.context}: {wanted.model} supports at most {config.max_position} tokens")
    storage = wanted.format or config.dtype
    geometry = CacheGeometry(config, storage, wanted.index_format or storage)
    ideal = ideal_bytes(config, storage, geometry.index, wanted.context)
    ideal_total, v32 = sum(ideal.values()), v32_bytes(config, wanted.context)
    slots = geometry.slots(wanted.context)
    allocated = slots * geometry.slab_bytes + geometry.tail_bytes
    return MemoryPlan(
        model=wanted.model,
        layers={
            "swa": len(config.layers_of(SWA)),
            "c4": len(config.layers_of(C4)),
            "c128": len(config.layers_of(C128)),
        },
        context=wanted.context,
        format=storage,
        index_format=geometry.index,
        ideal=ideal,
        ideal_total=ideal_total,
        slots=slots,
        slab=geometry.slab_bytes,
        tail=geometry.tail_bytes,
        checkpoint=geometry.checkpoint_bytes,
        checkpoint_slots=geometry.checkpoint_slots,
        allocated=allocated,
        v32=v32,
        v32_ratio=v32 / ideal_total,
        memory=wanted.memory,
        sequences=None if wanted.memory is None else wanted.memory // allocated,
    )


def plan(
    *,
    model: Annotated[str | None, typer.Option(help="demo, flash, pro, or the folder of a checkpoint.")] = None,
    context: Annotated[int | None, typer.Option(help="Tokens of one sequence, prompt and output.")] = None,
    format: Annotated[  # noqa: A002
        Format | None, typer.Option(help="Format of raw rows and entries. (default: the model's own type)")
    ] = None,
    index_format: Annotated[
        IndexFormat | None, typer.Option(help="Format of indexer keys. (default: the same as --format)")
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for the caches of all sequences, such as 141GB or 131GiB: shows how many fit."),
    ] = None,
    config: ConfigFile = None,
    json: Json = False,
) -> None:
    """Print the memory that the cache of one sequence needs: the ideal size and the allocated size.

    Ideal: each entry and each row of the windows is counted once. Allocated: whole block slots and one live tail.
    """
    flags = {
        "model": model,
        "context": context,
        "format": format,
        "index_format": index_format,
        "memory": memory,
    }
    wanted = load(MemoryPlanConfig, config, flags)
    result = plan_memory(wanted, model_config(wanted.model))
    if json:
        print_json(asdict(result))
    else:
        print_facts(f"{result.model}, {result.context:,} tokens, {result.format}", _rows(result))


def _rows(p: MemoryPlan) -> list[tuple[str, str]]:
    ideal = [(f"  {kind}, {p.layers[kind]} layers", binary_size(nbytes)) for kind, nbytes in p.ideal.items()]
    rows = [
        ("indexer keys", p.index_format),
        ("ideal", binary_size(p.ideal_total)),
        *ideal,
        ("allocated", f"{binary_size(p.allocated)}, {p.allocated / p.ideal_total - 1:+.2%}"),
        (f"  {p.slots:,} slots of a block", f"{binary_size(p.slab)} each"),
        ("  live tail", binary_size(p.tail)),
        ("checkpoint", f"{binary_size(p.checkpoint)}, {p.checkpoint_slots} slots"),
        ("V3.2-style cache, bf16", f"{binary_size(p.v32)}, {p.v32_ratio:.2f}x"),
    ]
    if p.memory is not None:
        rows.append(("sequences that fit", f"{p.sequences:,} in {binary_size(p.memory)}"))
    return rows
