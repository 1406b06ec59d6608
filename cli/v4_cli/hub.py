"""Downloads one commit of a Hugging Face repository into a folder: resumable, and verified file by file.

`huggingface_hub` downloads the files and resumes where an earlier run stopped, but it checks sizes, not content. This
module compares the hash of every file with the one that the repository states for the commit. A marker file is written
last, so a folder with the marker has all files, complete. A complete folder is never changed, even if its branch has
new commits: workers may be reading it, and files of two commits together are not a valid model. This module does not
know models, only which kinds of files a checkpoint consists of.
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
# Weights only as safetensors: pickle files can run code, and would double the size of the download.
WANTED = ("*.json", "*.safetensors", "*.jinja", "*.txt", "*.md", "LICENSE*")
_WORKERS = 8
_REPORT_SECONDS = 10.0
_PIECE = 8 << 20  # bytes
_TRIES = 6  # failures in a row, without progress, after which the download fails
_PAUSE_SECONDS = 2.0  # before the first retry; doubled for each further one
_CHECK_ENDPOINT = "set HF_ENDPOINT to the address of a hub, or leave it unset"
_PASSES = 2  # downloads of a file whose content is wrong

T = TypeVar("T")


@dataclass(frozen=True)
class RemoteFile:
    """A file of the commit, with the hash that its content must have."""

    name: str
    size: int  # bytes
    algorithm: str  # sha256, of the content; or git-sha1, of the file's git blob object
    digest: str


@dataclass(frozen=True)
class Commit:
    """The commit to which a revision, which may be a branch, tag or commit id, resolved."""

    id: str
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)


def fetch(repository: str, revision: str, into: Path, *, pause_seconds: float = _PAUSE_SECONDS) -> None:
    """Downloads every file of the revision to `into`, and verifies it. Raises ConfigError or FetchError.

    Files that an earlier run downloaded are kept. The environment variables HF_ENDPOINT and HF_TOKEN apply.
    """
    if kept := whole_commit(into, repository, revision):
        log.info("%s at %s is already complete", repository, kept[:12])
        return
    disable_progress_bars()
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # at INFO it logs URLs, some of which are signed
    commit = _retry(lambda: _resolve(repository, revision), lambda: 0, pause_seconds)
    _make_room(into, commit)
    (into / MARKER).unlink(missing_ok=True)
    wrong: Sequence[RemoteFile] = commit.files
    for _ in range(_PASSES):
        log.info("fetching %d of %d files of %s at %s", len(wrong), len(commit.files), repository, commit.id[:12])
        with _Reports(into, commit):
            _retry(lambda: _download(repository, commit, into), lambda: present_bytes(into), pause_seconds)
        log.info("verifying %.1f GB", commit.size / 1e9)
        wrong = verify(into, commit.files)
        if not wrong:
            _mark(into, repository, revision, commit)
            log.info("%s at %s is complete: %.1f GB", repository, commit.id[:12], commit.size / 1e9)
            return
        for file in wrong:
            log.warning("%s does not have the hash that the repository states: fetching it again", file.name)
            (into / file.name).unlink(missing_ok=True)
    names = ", ".join(file.name for file in wrong)
    raise FetchError(
        f"{names}: the content does not have the hash that {repository} states for {commit.id}: try again later"
    )


def whole_commit(into: Path, repository: str, revision: str) -> str:
    """Returns the commit that an earlier run verified in this folder for this revision, or "".

    Reads the marker file and compares the files' sizes with it; does not access the network.
    """
    try:
        marker = json.loads((into / MARKER).read_text(encoding="utf-8"))
        source, commit, sizes = (marker["repository"], marker["revision"]), str(marker["commit"]), dict(marker["files"])
    except (OSError, ValueError, TypeError, KeyError):  # there is no marker, or it is invalid
        return ""
    same = source == (repository, revision) and all(_size(into / name) == size for name, size in sizes.items())
    return commit if same else ""


def verify(into: Path, files: Iterable[RemoteFile]) -> list[RemoteFile]:
    """Returns the files whose content does not have the stated hash."""
    listed = list(files)
    with ThreadPoolExecutor(_WORKERS) as threads:
        matches = list(threads.map(lambda file: digest(into / file.name, file.algorithm) == file.digest, listed))
    return [file for file, match in zip(listed, matches, strict=True) if not match]


def digest(path: Path, algorithm: str) -> str:
    """Returns the hex digest of a file; that of git-sha1 is of git's blob object, which begins with the size."""
    if algorithm == "sha256":
        state = hashlib.sha256()
    else:
        state = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    with path.open("rb") as source:
        while piece := source.read(_PIECE):
            state.update(piece)
    return state.hexdigest()


def present_bytes(into: Path) -> int:
    """Returns the bytes of all files in the folder, including partly downloaded ones."""
    return sum(_size(path) for path in into.rglob("*") if path.is_file())


def _resolve(repository: str, revision: str) -> Commit:
    try:
        info = HfApi().model_info(repository, revision=revision, files_metadata=True)
    except GatedRepoError:
        raise ConfigError(
            f"{repository} is gated: accept its terms on its page, and set HF_TOKEN to a token of the same account"
        ) from None
    except RevisionNotFoundError:
        raise ConfigError(f"{repository} has no revision {revision!r}: give a branch, a tag or a commit") from None
    except RepositoryNotFoundError:
        raise ConfigError(
            f"{repository} does not exist or is private: check the name, or set HF_TOKEN to a token that may read it"
        ) from None
    except HFValidationError:
        raise ConfigError(f"{repository!r} is not the name of a repository: give OWNER/NAME") from None
    except ValueError:  # the answer is not JSON, but for example a proxy's page
        raise FetchError(f"the answer of {ENDPOINT} is not that of a Hugging Face hub: {_CHECK_ENDPOINT}") from None
    files = tuple(
        RemoteFile(s.rfilename, s.size or 0, "sha256", s.lfs.sha256)
        if s.lfs
        else RemoteFile(s.rfilename, s.size or 0, "git-sha1", s.blob_id or "")
        for s in info.siblings or ()
        if any(fnmatch(s.rfilename, pattern) for pattern in WANTED)
    )
    if odd := [file.name for file in files if ".." in PurePosixPath(file.name).parts or file.name.startswith("/")]:
        raise ConfigError(
            f"{repository} has a file named {odd[0]!r}, which would be written outside the folder: not downloaded"
        )
    if info.sha is None or not any(file.name.endswith(".safetensors") for file in files):
        raise ConfigError(f"{repository} at {revision} has no .safetensors file: give a repository with a checkpoint")
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
            f"{into} has {free / 1e9:.1f} GB free, but {missing / 1e9:.1f} GB are still to be downloaded: give it a "
            "larger volume"
        )


def _download(repository: str, commit: Commit, into: Path) -> None:
    snapshot_download(repository, revision=commit.id, local_dir=into, allow_patterns=list(WANTED), max_workers=_WORKERS)
    missing = [file.name for file in commit.files if not (into / file.name).is_file()]
    if missing:  # if the folder has files, the library reports no error when the hub cannot be reached
        raise ConnectionError(f"{len(missing)} files are still missing, among them {missing[0]}")


def _retry(work: Callable[[], T], progress: Callable[[], int], pause_seconds: float) -> T:
    """Returns the result of `work`, retried after errors.

    Raises FetchError after _TRIES failures in a row in which `progress`, a number of bytes, did not grow.
    """
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
                raise FetchError(
                    f"the download makes no progress after {tries} tries: {' '.join(str(error).split())}"
                ) from error
            log.warning("%s; trying again", " ".join(str(error).split())[:300])
            time.sleep(pause_seconds * 2 ** (tries - 1))


def _raise_if_final(error: Exception) -> None:
    """Raises ConfigError or FetchError if a retry cannot succeed after this error."""
    message = " ".join(str(error).split())
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code
        if 400 <= status < 500 and status not in (408, 429):
            raise FetchError(f"the hub refuses the request: {message}") from error
    elif isinstance(error, httpx2.UnsupportedProtocol):
        raise ConfigError(f"{ENDPOINT!r} is not an http:// or https:// address: {_CHECK_ENDPOINT}") from error
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        raise ConfigError(f"cannot write: {message}; give a writable volume with more free space") from error


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
    """Logs the progress of a download every few seconds, as a context manager."""

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
