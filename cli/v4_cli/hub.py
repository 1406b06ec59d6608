"""Downloads one commit of a Hugging Face repository into a folder: resumable, and verified file by file.

`huggingface_hub` brings the bytes and goes on where an earlier run stopped; it checks sizes, not content. Here every
file is hashed against what the repository's index says of the commit. A marker file in the folder is written last, so
that who finds it finds all files whole. What is whole stays as it is, even if its branch moves on: workers may be
reading it, and another commit's files among them would be no model. Knows no model: only which kinds of files a
checkpoint consists of.
"""

import errno
import hashlib
import json
import logging
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import TypeVar

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.constants import ENDPOINT
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
    XetDownloadError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars

from v4_cli.errors import FetchError
from v4_core.errors import ConfigError

log = logging.getLogger("v4serve.fetch")

MARKER = ".v4serve-complete.json"
# Weights as safetensors only: pickles can run code, and would double what is downloaded.
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.md", "LICENSE*")
_WORKERS = 8
_REPORT_SECONDS = 10.0
_PIECE = 8 << 20
_TRIES = 6  # in a row without a byte more
_PAUSE_SECONDS = 2.0  # before the second try; doubled for each further one
_CHECK_ENDPOINT = "set HF_ENDPOINT to the address of one, or leave it out"
_PASSES = 2  # over files whose content was wrong

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteFile:
    """A file of the commit: what its bytes must be."""

    name: str
    size: int
    algorithm: str  # sha256 of the bytes, or git-sha1 of git's blob object
    digest: str


@dataclass(frozen=True)
class Commit:
    """What a branch, tag or commit id stands for now."""

    id: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)


def fetch(repository: str, revision: str, into: Path, *, pause_seconds: float = _PAUSE_SECONDS) -> None:
    """Have every file of the revision in `into`, whole and verified. Raises ConfigError, FetchError.

    What a run before brought is kept. Reads HF_ENDPOINT and HF_TOKEN, as every tool of Hugging Face does.
    """
    if kept := whole_commit(into, repository, revision):
        log.info("%s at %s is complete already", repository, kept[:12])
        return
    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # below, it writes addresses, some of which are signed
    commit = _again(lambda: _resolve(repository, revision), lambda: 0, pause_seconds)
    _make_room(into, commit)
    (into / MARKER).unlink(missing_ok=True)
    wrong: Sequence[RemoteFile] = commit.files
    for _ in range(_PASSES):
        log.info("fetching %d of %d files of %s at %s", len(wrong), len(commit.files), repository, commit.id[:12])
        with _Reports(into, commit):
            _again(lambda: _download(repository, commit, into), lambda: present_bytes(into), pause_seconds)
        log.info("verifying %.1f GB", commit.size / 1e9)
        wrong = verify(into, commit.files)
        if not wrong:
            _mark(into, repository, revision, commit)
            log.info("%s at %s is complete: %.1f GB", repository, commit.id[:12], commit.size / 1e9)
            return
        for file in wrong:
            log.warning("%s is not what the repository says: fetching it again", file.name)
            (into / file.name).unlink(missing_ok=True)
    names = ", ".join(file.name for file in wrong)
    raise FetchError(f"{names}: the bytes do not have the hash that {repository} states for {commit.id}; try later")


def whole_commit(into: Path, repository: str, revision: str) -> str:
    """The commit that an earlier run verified here for this revision, if its files still have their sizes; else empty.

    Asks nobody: the marker says what belongs to it.
    """
    try:
        marker = json.loads((into / MARKER).read_text(encoding="utf-8"))
        asked, commit, sizes = (marker["repository"], marker["revision"]), str(marker["commit"]), dict(marker["files"])
    except (OSError, ValueError, TypeError, KeyError):  # none, or not ours
        return ""
    same = asked == (repository, revision) and all(_size(into / name) == size for name, size in sizes.items())
    return commit if same else ""


def verify(into: Path, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """The files whose content is not what it must be."""
    listed = list(files)
    with ThreadPoolExecutor(_WORKERS) as threads:
        right = list(threads.map(lambda file: digest(into / file.name, file.algorithm) == file.digest, listed))
    return [file for file, is_right in zip(listed, right, strict=True) if not is_right]


def digest(path: Path, algorithm: str) -> str:
    """Of a file's bytes; git-sha1 also covers git's header, which says the size."""
    if algorithm == "sha256":
        state = hashlib.sha256()
    else:
        state = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as source:
        while piece := source.read(_PIECE):
            state.update(piece)
    return state.hexdigest()


def present_bytes(into: Path) -> int:
    """Of whole and of partly downloaded files."""
    return sum(_size(path) for path in into.rglob("*") if path.is_file())


def _resolve(repository: str, revision: str) -> Commit:
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except GatedRepoError:
        raise ConfigError(
            f"{repository} is gated: accept its terms on its page and give a token of that account in HF_TOKEN"
        ) from None
    except RevisionNotFoundError:
        raise ConfigError(f"{repository} has no revision {revision!r}: give a branch, a tag or a commit") from None
    except RepositoryNotFoundError:
        raise ConfigError(
            f"{repository} does not exist or is private: check the name, or give a token that may read it in HF_TOKEN"
        ) from None
    except HFValidationError:
        raise ConfigError(f"{repository!r} is no repository: write OWNER/NAME") from None
    except ValueError:  # in place of JSON, such as a proxy's page
        raise FetchError(f"{ENDPOINT} does not answer as a hub does: {_CHECK_ENDPOINT}") from None
    files = tuple(
        RemoteFile(s.rfilename, s.size or 0, "sha256", s.lfs.sha256)
        if s.lfs
        else RemoteFile(s.rfilename, s.size or 0, "git-sha1", s.blob_id or "")
        for s in info.siblings or ()
        if any(fnmatch(s.rfilename, pattern) for pattern in WANTED)
    )
    if odd := [file.name for file in files if ".." in PurePosixPath(file.name).parts or file.name.startswith("/")]:
        raise ConfigError(f"{repository} holds a file named {odd[0]!r}: refused, since it would lie outside the folder")
    if info.sha is None or not any(file.name.endswith(".safetensors") for file in files):
        raise ConfigError(f"{repository} at {revision} holds no .safetensors file: it is no checkpoint for v4serve")
    return Commit(info.sha, files)


def _make_room(into: Path, commit: Commit) -> None:
    try:
        into.mkdir(parents=True, exist_ok=True)
        missing = commit.size - present_bytes(into)
        free = shutil.disk_usage(into).free
    except OSError as error:
        raise ConfigError(f"cannot write to {into}: {error.strerror}") from error
    if missing > free:
        raise ConfigError(
            f"{into} has {free / 1e9:.1f} GB free and {missing / 1e9:.1f} GB are still to come: give it a larger volume"
        )


def _download(repository: str, commit: Commit, into: Path) -> None:
    snapshot_download(repository, revision=commit.id, local_dir=into, allow_patterns=list(WANTED), max_workers=_WORKERS)
    missing = [file.name for file in commit.files if not (into / file.name).is_file()]
    if missing:  # an unreachable hub is no error to the library when the folder holds something
        raise ConnectionError(f"{len(missing)} files are still missing, {missing[0]} for one")


def _again(work: Callable[[], T], progress: Callable[[], int], pause_seconds: float) -> T:
    """`work`, tried again as long as each try brings bytes, and some times beyond. Raises FetchError."""
    tries, before = 0, progress()
    while True:
        try:
            return work()
        except (HfHubHTTPError, XetDownloadError, httpx2.TransportError, OSError) as error:
            _raise_if_final(error)
            after = progress()
            tries = 1 if after > before else tries + 1
            before = after
            if tries >= _TRIES:
                raise FetchError(f"the download does not get on: {' '.join(str(error).split())}") from error
            log.warning("%s; trying again", " ".join(str(error).split())[:300])
            time.sleep(pause_seconds * 2 ** (tries - 1))


def _raise_if_final(error: Exception) -> None:
    """What another try cannot mend."""
    told = " ".join(str(error).split())
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if 400 <= status < 500 and status not in (408, 429):
            raise FetchError(f"the hub refuses: {told}") from error
    elif isinstance(error, httpx2.UnsupportedProtocol):
        raise ConfigError(f"{ENDPOINT!r} is no http:// or https:// address: {_CHECK_ENDPOINT}") from error
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        raise ConfigError(f"cannot write: {told}; give a writable volume with more room") from error


def _mark(into: Path, repository: str, revision: str, commit: Commit) -> None:
    sizes = {file.name: file.size for file in commit.files}
    text = json.dumps({"repository": repository, "revision": revision, "commit": commit.id, "files": sizes})
    (into / f"{MARKER}.new").write_text(text, encoding="utf-8")
    (into / f"{MARKER}.new").rename(into / MARKER)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


class _Reports:
    """A line of progress every few seconds while a download runs."""

    def __init__(self, into: Path, commit: Commit) -> None:
        self._into, self._commit = into, commit
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        before, total = present_bytes(self._into), self._commit.size
        while not self._over.wait(_REPORT_SECONDS):
            now = present_bytes(self._into)
            rate = max(now - before, 0) / _REPORT_SECONDS / 1e6
            log.info("%.1f of %.1f GB (%d %%), %.0f MB/s", now / 1e9, total / 1e9, 100 * now // max(total, 1), rate)
            before = now
