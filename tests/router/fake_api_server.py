"""A fake Kubernetes API server for pods: list and watch over HTTP, with versions, bookmarks and 410."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.router.conftest import listening

PATH = "/api/v1/namespaces/ns/pods"
SELECTOR = "v4serve.dev/deployment=demo"


class FakeApiServer:
    """A fake API server. A test sets its attributes to control it, also while it runs."""

    def __init__(self) -> None:
        self.app = Starlette(routes=[Route(PATH, self._pods)])
        self.pods: dict[str, dict[str, Any]] = {}  # pod by uid
        self.version = 100
        self.oldest = 0  # the oldest version that the server still has
        self.status = 200  # HTTP status of every answer
        self.token = "key"  # the valid bearer token
        self.asked = 0  # number of requests, both lists and watches
        self.lists = 0  # number of lists that were answered
        self.watches: list[asyncio.Queue[bytes | None]] = []
        self.bad: list[str] = []  # invalid requests

    def set(self, uid: str, address: str, **changes: Any) -> None:
        """Creates or changes a pod with a worker on 127.0.0.1."""
        about = {"role": "decode", "ready": True, "leaving": False, "revision": "r1"} | changes
        kind = "MODIFIED" if uid in self.pods else "ADDED"
        host, _, port = address.rpartition(":")
        self.version += 1
        self.pods[uid] = {
            "metadata": {
                "name": f"demo-{uid}",
                "uid": uid,
                "resourceVersion": str(self.version),
                "creationTimestamp": "2026-01-01T00:00:00Z",
                "labels": {"v4serve.dev/deployment": "demo", "v4serve.dev/revision": about["revision"]},
                **({"deletionTimestamp": "2026-01-01T01:00:00Z"} if about["leaving"] else {}),
            },
            "spec": {"containers": [{"name": "w", "ports": [{"name": about["role"], "containerPort": int(port)}]}]},
            "status": {
                "phase": "Running",
                "podIP": host,
                "conditions": [{"type": "Ready", "status": str(about["ready"])}],
            },
        }
        self._send(kind, self.pods[uid])

    def delete(self, uid: str, *, sent: bool = True) -> None:
        """Deletes a pod; without `sent`, no watch gets the event."""
        pod = self.pods.pop(uid)
        self.version += 1
        if sent:
            self._send("DELETED", pod)

    def bookmark(self) -> None:
        """Sends a bookmark, as if only other objects had changed."""
        self._send("BOOKMARK", {"metadata": {"resourceVersion": str(self.version)}})

    def gone(self) -> None:
        """Makes the versions of the running watches too old."""
        self._send("ERROR", {"kind": "Status", "code": 410, "message": "too old resource version"})

    def cut(self, part: bytes = b"") -> None:
        """Ends all watches, after a partial line if one is given."""
        for watch in self.watches:
            if part:
                watch.put_nowait(part)
            watch.put_nowait(None)

    def _send(self, kind: str, thing: dict[str, Any]) -> None:
        for watch in self.watches:
            watch.put_nowait(json.dumps({"type": kind, "object": thing}).encode() + b"\n")

    async def _pods(self, request: Request) -> Response:
        query = request.query_params
        self.asked += 1
        if query.get("labelSelector") != SELECTOR:
            self.bad.append(str(query))
        if request.headers.get("authorization") != f"Bearer {self.token}":
            return JSONResponse({"kind": "Status", "code": 401, "message": "Unauthorized"}, 401)
        if self.status != 200:
            return JSONResponse({"kind": "Status", "code": self.status, "message": "away"}, self.status)
        if query.get("watch", "").lower() == "true":
            if query.get("allowWatchBookmarks", "").lower() != "true" or not query.get("timeoutSeconds"):
                self.bad.append(str(query))
            if int(query["resourceVersion"]) < self.oldest:
                return JSONResponse({"kind": "Status", "code": 410, "message": "too old resource version"}, 410)
            watch: asyncio.Queue[bytes | None] = asyncio.Queue()
            self.watches.append(watch)
            return StreamingResponse(self._stream(watch), media_type="application/json")
        self.lists += 1
        return JSONResponse(
            {"kind": "PodList", "metadata": {"resourceVersion": str(self.version)}, "items": list(self.pods.values())}
        )

    async def _stream(self, watch: asyncio.Queue[bytes | None]) -> AsyncIterator[bytes]:
        try:
            while (line := await watch.get()) is not None:
                yield line
        finally:
            self.watches.remove(watch)


@asynccontextmanager
async def api_server(
    server: FakeApiServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[FakeApiServer]:
    """Serves on a free port, and sets KUBECONFIG to a file that points there."""
    async with listening(server.app) as url:
        file = folder / "kubeconfig"
        file.write_text(
            f"""{{apiVersion: v1, kind: Config, current-context: c,
            clusters: [{{name: c, cluster: {{server: "{url}"}}}}], users: [{{name: u, user: {{token: key}}}}],
            contexts: [{{name: c, context: {{cluster: c, user: u}}}}]}}"""
        )
        monkeypatch.setenv("KUBECONFIG", str(file))
        yield server
        server.cut()
