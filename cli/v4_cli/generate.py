"""`v4serve generate`: continues a text with one engine, which runs prefill and decode, without any network."""

import asyncio
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from v4_cli.errors import needs
from v4_cli.model import demo_model
from v4_cli.options import Checkpoint, Json, command
from v4_cli.output import print_json
from v4_core.blocks import unpack_ids
from v4_core.errors import ConfigError
from v4_core.sampling import Sampling
from v4_core.settings import FLAT, Setting
from v4_engine.options import ComputeOptions, EngineOptions, SchedulerConfig

if TYPE_CHECKING:
    from v4_engine.loading import Loaded


@dataclass(frozen=True)
class GenerateConfig:
    """Settings of `v4serve generate`. Raises ConfigError if a value cannot be used."""

    prompt: Annotated[str, Setting("Text to continue, in which the model's special tokens are recognized.")]
    model: Annotated[Path, Setting("Folder of a checkpoint; by default the model shipped with v4serve.")] = field(
        default_factory=demo_model
    )
    max_tokens: Annotated[int, Setting("Most tokens to generate.")] = 128
    temperature: Annotated[float, Setting("Sampling temperature; 0: greedy.")] = 1.0
    top_k: Annotated[int, Setting("Sample from this many likeliest tokens; 0: from all.")] = 0
    top_p: Annotated[float, Setting("Sample from the likeliest tokens of this total probability.")] = 1.0
    min_p: Annotated[float, Setting("Least probability of a token, as a share of the likeliest token's.")] = 0.0
    seed: Annotated[
        int | None, Setting("Seed of the sampling; the same seed gives the same text. By default a random seed.")
    ] = None
    compute: Annotated[ComputeOptions, FLAT] = field(default_factory=ComputeOptions)

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ConfigError(f"max_tokens is {self.max_tokens}: ask for at least one token")
        if self.temperature < 0 or not 0 < self.top_p <= 1 or not 0 <= self.min_p <= 1 or self.top_k < 0:
            raise ConfigError(
                "temperature and top_k must not be negative, top_p must be greater than 0 and at most 1, and min_p "
                "must be between 0 and 1"
            )
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed is {self.seed}: give a number between 0 and 2^64-1")


@dataclass(frozen=True)
class Piece:
    """One sampled token. `text`: the characters that it completes."""

    token: int
    text: str
    finish: Literal["stop", "length"] | None


def _generate(wanted: GenerateConfig, json: bool) -> None:
    """Continue a text on this machine, without a server."""
    seed = secrets.randbits(64) if wanted.seed is None else wanted.seed
    started = time.monotonic()
    pieces = []
    for piece in _pieces(wanted, seed):
        pieces.append(piece)
        if not json:
            print(piece.text, end="", flush=True)
    if json:
        print_json(
            {
                "text": "".join(piece.text for piece in pieces),
                "token_ids": [piece.token for piece in pieces],
                "finish_reason": pieces[-1].finish,
                "seed": seed,
                "seconds": time.monotonic() - started,
            }
        )
    else:
        print()


generate = command(GenerateConfig, _generate, flags={"model": Checkpoint, "json": Json})


def _pieces(wanted: GenerateConfig, seed: int) -> Iterator[Piece]:
    """Yields tokens as they are sampled.

    Raises ConfigError if the model cannot be used, CapacityError if the prompt is too long for it.
    """
    with needs("local"):
        from v4_engine.generate import generate as run  # noqa: PLC0415
        from v4_engine.sequence import Request  # noqa: PLC0415
        from v4_router.detokenizer import Detokenizer  # noqa: PLC0415
        from v4_router.tokenizer import Tokenizer  # noqa: PLC0415
    tokenizer = Tokenizer(wanted.model, cache_bytes=0)
    ids = unpack_ids(asyncio.run(tokenizer.encode_raw(wanted.prompt)))
    tokenizer.close()
    engine = _load(wanted).engine
    request = Request(
        ("generate", 0),
        "whole",
        ids,
        max_tokens=wanted.max_tokens,
        stop_ids=frozenset(engine.config.eos_token_ids),
        sampling=Sampling(
            temperature=wanted.temperature,
            top_k=wanted.top_k,
            top_p=wanted.top_p,
            min_p=wanted.min_p,
            seed=seed,
        ),
    )
    detokenizer = Detokenizer(tokenizer.token_bytes)
    for token in run(engine, [request]):
        text = detokenizer.push(token.drawn.id)
        yield Piece(token.drawn.id, text + (detokenizer.flush() if token.finish else ""), token.finish)


def _load(wanted: GenerateConfig) -> "Loaded":
    from v4_engine.loading import load_engine  # noqa: PLC0415

    options = EngineOptions(wanted.compute, scheduler=SchedulerConfig(max_sequences=1))
    with _progress() as progress:
        task = progress.add_task(f"loading {wanted.model.name}", total=None)
        return load_engine(
            wanted.model, options, lambda done, total: progress.update(task, completed=done, total=total)
        )


def _progress() -> Progress:
    """Returns a progress bar on stderr that is erased at the end; it is not shown if stderr is not a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=False))
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
