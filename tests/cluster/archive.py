"""Layers and images as files: folders to tars of the same bytes each time, tars to what `ctr images import` takes."""

import hashlib
import io
import json
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_TIME = "2020-01-01T00:00:00Z"


def write_layer(root: Path, members: Sequence[str], tar: Path) -> None:
    """Write these files and folders of `root`; owned by root, of one time, sorted."""
    same = ("--sort=name", "--owner=0", "--group=0", "--numeric-owner", f"--mtime={_TIME}", "--format=gnu")
    subprocess.run(["tar", "--create", *same, "--file", str(tar), "--directory", str(root), *members], check=True)


def unpack(layers: Sequence[Path], root: Path) -> None:
    """Lay the layers' files over each other."""
    root.mkdir(exist_ok=True)
    for layer in layers:
        subprocess.run(["tar", "--extract", "--file", str(layer), "--directory", str(root)], check=True)


def write_archive(
    layers: Sequence[Path], images: Mapping[str, Mapping[str, Any]], architecture: str, tar: Path
) -> None:
    """Write a docker-archive with one image for each tag, all of the same layers.

    `images` gives the configs (Entrypoint, Env, Labels, User ...) by full tag; configs that differ make other digests.
    """
    digests = [_digest(layer) for layer in layers]
    manifest = []
    with tarfile.open(tar, "w") as archive:
        for digest, layer in zip(digests, layers, strict=True):
            archive.add(layer, f"{digest}.tar", filter=_plain)
        for tag, config in images.items():
            content = json.dumps(
                {
                    "architecture": architecture,
                    "os": "linux",
                    "created": _TIME,
                    "config": config,
                    "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest in digests]},
                    "history": [{"created": _TIME, "created_by": layer.name} for layer in layers],
                },
                sort_keys=True,
            ).encode()
            name = f"{hashlib.sha256(content).hexdigest()}.json"
            _add(archive, name, content)
            manifest.append({"Config": name, "RepoTags": [tag], "Layers": [f"{digest}.tar" for digest in digests]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = info.mtime = 0
    info.uname = info.gname = ""
    info.mode = 0o644
    return info
