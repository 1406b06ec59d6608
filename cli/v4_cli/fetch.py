"""`v4serve fetch`: downloads a checkpoint from Hugging Face into a folder, and verifies it."""

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
    """Settings of `v4serve fetch`."""

    repository: str  # OWNER/NAME
    into: Path  # folder of the checkpoint; files that an earlier run downloaded are kept
    revision: str = "main"  # branch, tag or commit


def fetch(
    *,
    repository: Annotated[str | None, typer.Option(help="OWNER/NAME of a repository on Hugging Face.")] = None,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit. (default: main)")] = None,
    into: Annotated[Path | None, typer.Option(help="Folder for the checkpoint.")] = None,
    config: ConfigFile = None,
) -> None:
    """Download a checkpoint from Hugging Face, resuming an earlier run, and verify the hash of every file.

    A complete checkpoint is never changed, even if its branch has new commits: give one as --revision to fetch it.

    Environment variables: HF_TOKEN is the access token, if one is needed; HF_ENDPOINT is the address of another hub.
    """
    wanted = load(FetchConfig, config, {"repository": repository, "revision": revision, "into": into})
    configure("human")
    with needs("fetch"):
        from v4_cli.hub import fetch as download  # noqa: PLC0415
    download(wanted.repository, wanted.revision, wanted.into)
