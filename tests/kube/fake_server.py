"""A small API server on loopback, with objects, watches and faults on demand, but without schemas and access control.

Apply merges the whole body over what is there, which is enough for objects that one manager writes.
"""

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import yaml
from aiohttp import web

from v4_kube.client import KubeClient

Fault = Callable[[web.Request], web.StreamResponse | None]

KINDS = {
    "v1": {
        "configmaps": "ConfigMap",
        "secrets": "Secret",
        "pods": "Pod",
        "events": "Event",
        "namespaces": "Namespace",
    },
    "apps/v1": {"deployments": "Deployment"},
    "policy/v1beta1": {"poddisruptionbudgets": "PodDisruptionBudget"},
    "coordination.k8s.io/v1": {"leases": "Lease"},
    "v4serve.dev/v1alpha1": {"v4deployments": "V4Deployment"},
    "apiextensions.k8s.io/v1": {"customresourcedefinitions": "CustomResourceDefinition"},
}

_OF_THE_CLUSTER = ("CustomResourceDefinition", "Namespace", "SecurityContextConstraints")


class FakeServer:
    """`objects` are by path; `requests` are all requests in order."""

    def __init__(self) -> None:
        self.objects: dict[str, dict[str, Any]] = {}
        self.requests: list[str] = []
        self.fault: Fault = lambda _: None  # returns an answer that replaces the right one, or None
        self.kinds = copy.deepcopy(KINDS)
        self.history: list[tuple[int, str, dict[str, Any]]] = []  # version, type and object of each change
        self.oldest = 0  # watches from an older version get status 410
        self.cut = asyncio.Event()  # ends all open streams
        self.mute = False  # streams send no more events
        self._version = 10
        self._changed = asyncio.Condition()

    def count(self, start: str) -> int:
        """The number of requests that start with a text such as `PATCH /api`."""
        return sum(request.startswith(start) for request in self.requests)

    async def put(self, path: str, obj: dict[str, Any]) -> dict[str, Any]:
        """Writes an object as another client would."""
        return await self._store(path, obj)

    async def remove(self, path: str) -> None:
        """Deletes an object as another client would."""
        await self._store(path, None)

    async def forget_history(self) -> None:
        """Makes watches from any earlier version fail with status 410."""
        self._version += 1
        self.oldest = self._version

    def cut_streams(self) -> None:
        """Closes the connections of all watches."""
        self.cut.set()
        self.cut = asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Answers any request."""
        self.requests.append(f"{request.method} {request.path}")
        answer = self.fault(request)
        if answer is not None:
            return answer
        if request.method == "GET":
            return await self._get(request)
        body = json.loads(await request.text() or "{}")
        methods = {"POST": self._post, "PUT": self._put, "PATCH": self._patch, "DELETE": self._delete}
        return await methods[request.method](request, body)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/version":
            return web.json_response({"major": "1", "minor": "20+"})
        if path == "/api":
            return web.json_response({"versions": ["v1"]})
        if path == "/apis":
            return web.json_response({"groups": self._groups()})
        group = path.removeprefix("/apis/").removeprefix("/api/")
        if group in self.kinds:
            return web.json_response({"resources": self._resources(group)})
        if path in self.objects:
            return web.json_response(self.objects[path])
        if path.rpartition("/")[2] not in {name for names in self.kinds.values() for name in names}:
            return status(404, "NotFound")
        if "watch" in request.query:
            return await self._watch(request)
        items = [obj for at, obj in sorted(self.objects.items()) if _in(path, at)]
        none: list[Any] | None = (
            None if "PartialObjectMetadata" in request.headers["Accept"] else []
        )  # like the real API server
        return web.json_response({"metadata": {"resourceVersion": str(self._version)}, "items": items or none})

    def _groups(self) -> list[dict[str, Any]]:
        groups: dict[str, list[dict[str, str]]] = {}
        for served in self.kinds:
            group, _, version = served.rpartition("/")
            if group:
                groups.setdefault(group, []).append({"groupVersion": served, "version": version})
        return [{"name": group, "versions": found, "preferredVersion": found[0]} for group, found in groups.items()]

    def _resources(self, group: str) -> list[dict[str, Any]]:
        common = {"singularName": "", "verbs": ["list", "watch", "patch"]}
        return [
            {"name": name, "kind": kind, "namespaced": kind not in _OF_THE_CLUSTER, **common}
            for name, kind in self.kinds[group].items()
        ]

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        seen, cut, transport = int(request.query["resourceVersion"]), self.cut, request.transport
        assert transport is not None
        stream = web.StreamResponse()
        await stream.prepare(request)
        if seen < self.oldest:
            await stream.write(_line("ERROR", {"code": 410, "reason": "Expired", "message": "too old"}))
            return stream
        while not cut.is_set() and not transport.is_closing():
            if not self.mute:
                for version, kind, obj in self.history:
                    if version > seen and _in(request.path, obj["path"]):
                        await stream.write(_line(kind, obj["object"]))
                seen = self._version
            async with self._changed:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await self._changed.wait()
        transport.close()
        return stream

    async def _post(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        path = f"{request.path}/{body['metadata']['name']}"
        if path in self.objects:
            return status(409, "AlreadyExists")
        return web.json_response(await self._store(path, body), status=201)

    async def _put(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        known = self.objects.get(request.path)
        if known is None:
            return status(404, "NotFound")
        if body["metadata"].get("resourceVersion") != known["metadata"]["resourceVersion"]:
            return status(409, "Conflict")
        return web.json_response(await self._store(request.path, body))

    async def _patch(self, request: web.Request, body: Any) -> web.StreamResponse:
        path = request.path.removesuffix("/status")
        known = self.objects.get(path)
        if request.content_type == "application/json-patch+json":
            test, *operations = body
            if known is None or known["metadata"]["uid"] != test["value"]:
                return status(422, "Invalid", "the server rejected our request due to an error in our request")
            spec = dict(known["spec"])
            for operation in operations:
                field = operation["path"].removeprefix("/spec/")
                if operation["op"] == "remove":
                    del spec[field]
                else:
                    spec[field] = operation["value"]
            return web.json_response(await self._store(path, {**known, "spec": spec}))
        applied = request.content_type == "application/apply-patch+yaml"
        if known is None and not applied:
            return status(404, "NotFound")
        uid = body["metadata"].get("uid")
        if uid and (known is None or known["metadata"]["uid"] != uid):
            return status(409, "Conflict")
        merged = _merged(known or {}, body)
        return web.json_response(known if merged == known else await self._store(path, merged))

    async def _delete(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        known = self.objects.get(request.path)
        if known is None:
            return status(404, "NotFound")
        if body["preconditions"]["uid"] != known["metadata"]["uid"]:
            return status(409, "Conflict")
        await self._store(request.path, None)
        return web.json_response({"kind": "Status", "status": "Success"})

    async def _store(self, path: str, obj: dict[str, Any] | None) -> dict[str, Any]:
        self._version += 1
        known = self.objects.pop(path, None)
        if obj is None:
            assert known is not None
            changed = copy.deepcopy(known)
        else:
            defaults = {"uid": f"uid-{self._version}", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
            kept = known["metadata"] if known else {}
            changed = {**obj, "metadata": {**defaults, **kept, **obj["metadata"]}}
        changed["metadata"]["resourceVersion"] = str(self._version)
        kind = "DELETED" if obj is None else "MODIFIED" if known else "ADDED"
        if obj is not None:
            self.objects[path] = changed
        self.history.append((self._version, kind, {"path": path, "object": changed}))
        async with self._changed:
            self._changed.notify_all()
        return changed


def status(code: int, reason: str, message: str = "") -> web.Response:
    """An error response of the API server."""
    body = {"kind": "Status", "status": "Failure", "code": code, "reason": reason, "message": message or reason}
    return web.json_response(body, status=code)


def _line(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


def _in(folder: str, path: str) -> bool:
    """Whether an object's path belongs to a kind's path, of one namespace or of all."""
    if "/namespaces/" in folder:
        return path.rpartition("/")[0] == folder
    root, _, plural = folder.rpartition("/")
    return path.startswith(f"{root}/namespaces/") and path.split("/")[-2] == plural


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    return {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}


@contextlib.asynccontextmanager
async def serving(
    folder: Path, on_write: Callable[[str, str], None] = lambda verb, kind: None
) -> AsyncIterator[tuple[FakeServer, KubeClient]]:
    """Yields a server, and a client that is connected to it; the kubeconfig is written into `folder`."""
    server = FakeServer()
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": f"http://127.0.0.1:{runner.addresses[0][1]}"}}],
        "users": [{"name": "u", "user": {"token": "secret"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(config))
    api = await KubeClient.connect("v4serve-operator", folder / "kubeconfig", on_write)
    try:
        yield server, api
    finally:
        await api.close()
        server.cut_streams()
        await runner.cleanup()
