"""`v4serve fetch`: bring a checkpoint from Hugging Face into a folder, whole and verified."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from v4_cli.errors import needs
from v4_cli.options import ConfigFile
from v4_core.logs import configure
from v4_core.settings import load


@dataclass(frozen=True)
class FetchConfig:
    """What is fetched, and where to."""

    repository: str  # OWNER/NAME
    into: Path  # folder of the checkpoint; what an earlier run brought there is kept
    revision: str = "main"  # branch, tag or commit


def fetch(
    *,
    repository: Annotated[str | None, typer.Option(help="OWNER/NAME of a repository on Hugging Face.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit. (default: main)")] = None,
    into: Annotated[Path | None, typer.Option(help="Folder for the checkpoint.")] = None,
    config: ConfigFile = None,
) -> None:
    """Download a checkpoint from Hugging Face, go on where an earlier run stopped, and verify every file's hash.

    What is whole stays as it is, even if the branch has moved on: name a commit for what came later.

    HF_TOKEN is the access token if the repository needs one, HF_ENDPOINT another address of the hub.
    """
    wanted = load(FetchConfig, config, {"repository": repository, "revision": revision, "into": into})
    configure("human")
    with needs("fetch"):
        from v4_cli.hub import fetch as bring  # noqa: PLC0415
    bring(wanted.repository, wanted.revision, wanted.into)
