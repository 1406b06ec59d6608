"""A fake Hugging Face hub with one repository: the parts of the API that a download uses, and ways to fail."""

import hashlib
import json
import threading
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import unquote, urlsplit

COMMIT = "c0ffee" + "0" * 34


def git_sha1(data: bytes) -> str:
    """Returns git's object id of a blob."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


@dataclass
class Hub:
    """`files`: content by name; weights are reported as stored with LFS."""

    repository: str
    files: dict[str, bytes]
    cut_after: dict[str, int] = field(default_factory=dict)  # bytes by file, after which its first answer breaks off
    damaged: Counter[str] = field(
        default_factory=Counter
    )  # number of further answers by file that have a wrong content
    status: int = 200  # HTTP status of the API's answers
    page: bytes = b""  # the answer to every request, if given
    ranges: list[tuple[str, str]] = field(default_factory=list)  # (file, Range) of every download
    address: str = ""

    def __enter__(self) -> "Hub":
        hub = self

        class Handler(_Handler):
            served = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def index(self) -> dict[str, object]:
        """Returns the API's description of the repository."""
        siblings = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
            if name.endswith(".safetensors"):
                entry["lfs"] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest(), "pointerSize": 130}
            siblings.append(entry)
        return {"id": self.repository, "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}

    def tree(self) -> list[dict[str, object]]:
        """Returns the API's listing of the commit's files."""
        entries = []
        for name, data in self.files.items():
            entry: dict[str, object] = {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
            if name.endswith(".safetensors"):
                entry["lfs"] = {"size": len(data), "oid": hashlib.sha256(data).hexdigest(), "pointerSize": 130}
            entries.append(entry)
        return entries


class _Handler(BaseHTTPRequestHandler):
    served: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Logs nothing."""

    def do_HEAD(self) -> None:
        self._file(body=False)

    def do_GET(self) -> None:
        hub, path = self.served, unquote(urlsplit(self.path).path)
        if hub.page:
            self._answer(200, hub.page)
        elif not path.startswith("/api/models/"):
            self._file(body=True)
        elif hub.status != 200:
            self._answer(hub.status, b"{}")
        elif not path.startswith(f"/api/models/{hub.repository}"):
            self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif path.rpartition("/")[2] not in ("main", COMMIT):
            self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        else:
            self._answer(200, json.dumps(hub.tree() if "/tree/" in path else hub.index()).encode())

    def _file(self, *, body: bool) -> None:
        hub = self.served
        name = unquote(urlsplit(self.path).path).partition(f"/resolve/{COMMIT}/")[2]
        data = hub.files.get(name)
        if data is None:
            self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        lfs = name.endswith(".safetensors")
        etag = hashlib.sha256(data).hexdigest() if lfs else git_sha1(data)
        headers = {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if not body:
            self._answer(200, data, headers, body=False)
            return
        asked = self.headers.get("Range", "")
        hub.ranges.append((name, asked))
        start = int(asked.removeprefix("bytes=").partition("-")[0] or 0)
        if hub.damaged[name] > 0:
            hub.damaged[name] -= 1
            data = bytes([data[0] ^ 1]) + data[1:]
        if asked:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._answer(206 if asked else 200, data[start:], headers, cut=hub.cut_after.pop(name, None))

    def _answer(
        self,
        status: int,
        data: bytes,
        headers: dict[str, str] | None = None,
        *,
        body: bool = True,
        cut: int | None = None,
    ) -> None:
        self.send_response(status)
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data if cut is None else data[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True
            self.connection.shutdown(2)
