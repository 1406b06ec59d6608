"""Flags that several commands share. A flag that is not given is None: the file, then the dataclass, decides."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from v4_cli.model import model_folder
from v4_core.logs import LogFormat

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="YAML file with these and further settings; flags override it.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--model",
        parser=model_folder,
        metavar="<path>",
        help="Folder of a checkpoint. (default: the model shipped with v4serve)",
    ),
]
CheckpointOrDemo = Annotated[
    Path | None,
    typer.Option(
        "--model",
        parser=model_folder,
        metavar="<path|demo>",
        help="Folder of a checkpoint; demo: the model shipped with v4serve.",
    ),
]
LogFormatFlag = Annotated[
    LogFormat | None,
    typer.Option("--log-format", help="Log for people, or one JSON object a line. (default: human)"),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda"] | None,
    typer.Option("--device", help="Where to compute; prefill and decode workers: cpu only as yet. (default: auto)"),
]
Dtype = Annotated[
    str | None,
    typer.Option("--dtype", help="Type to compute in: bf16, fp32 or fp64. (default: auto, the checkpoint's own)"),
]
Format = Annotated[
    str | None,
    typer.Option(
        "--format", help="How the cache is stored: bf16, fp32 or fp64. (default: auto, the checkpoint's own type)"
    ),
]
