"""The Kubernetes API as plain JSON: requests, streams, and what they raise. The only file that knows HTTP.

Objects are the mappings that the server sends. Every request that changes something is counted, and goes through
`guard` first, so that a replica that may have lost the Lease cannot write. Knows no kind and no policy.
"""

import json
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from v4_core.errors import ConfigError
from v4_core.kubernetes import MANAGER
from v4_operator.errors import ApiError, Unreachable
from v4_operator.metrics import API_WRITES

_Body = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_SECONDS = 10.0  # of one request; with the Lease's renewal deadline less than the Lease's duration
_READ = aiohttp.ClientTimeout(total=60.0, sock_connect=_SECONDS, sock_read=30.0)
_WRITE = aiohttp.ClientTimeout(total=_SECONDS)

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_METADATA_ONLY = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class Resource:
    """A kind as the server's paths name it."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Of one object, or of all of a namespace, or of all."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        parts = [root, f"namespaces/{namespace}" if namespace else "", self.plural, name, subresource]
        return "/".join(part for part in parts if part)


class Api:
    """One connection pool to one cluster."""

    def __init__(self, client: ApiClient) -> None:
        self.configuration = client.configuration
        self.guard: Callable[[], None] = lambda: None  # raises where nothing may be written
        self._client = client

    @classmethod
    async def connect(cls, kubeconfig: Path | None = None) -> "Api":
        """As $KUBECONFIG or `kubeconfig` says, else as the pod's service account. Raises ConfigError; sends nothing."""
        configuration = Configuration()
        in_cluster = kubeconfig is None and "KUBECONFIG" not in os.environ and own_namespace()
        try:
            if in_cluster:
                load_incluster_config(client_configuration=configuration)
            else:
                file = str(kubeconfig) if kubeconfig else None
                await load_kube_config(config_file=file, client_configuration=configuration)
        except (ConfigException, OSError, yaml.YAMLError) as error:
            said = " ".join(str(error).split())
            raise ConfigError(f"no cluster to connect to: {said}; set KUBECONFIG, or run in a pod") from error
        configuration.connection_pool_maxsize = 0  # every watch keeps one connection for good
        client = ApiClient(configuration)
        client.user_agent = f"{MANAGER}/{version('v4serve')}"
        return cls(client)

    async def close(self) -> None:
        """End all connections."""
        await self._client.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False) -> Any:
        """What the server answers. Raises ApiError."""
        accept = _METADATA_ONLY.format("List") if metadata_only else "application/json"
        return await self._answer("GET", path, query, accept=accept)

    async def exists(self, resource: Resource, namespace: str, name: str) -> bool:
        """Whether the server has an object; its content does not travel. Raises ApiError."""
        try:
            await self._answer("GET", resource.path(namespace, name), accept=_METADATA_ONLY.format(""))
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Any:
        """Make an object that does not exist. Raises ApiError, of status 409 where it does."""
        metadata = body["metadata"]
        path = resource.path(metadata["namespace"])
        return await self._write("POST", "create", resource, metadata["name"], path, body)

    async def replace(self, resource: Resource, body: Mapping[str, Any]) -> Any:
        """Write a whole object, if it is still of the body's resourceVersion. Raises ApiError."""
        name = body["metadata"]["name"]
        path = resource.path(body["metadata"]["namespace"], name)
        return await self._write("PUT", "update", resource, name, path, body)

    async def apply(self, resource: Resource, body: Mapping[str, Any]) -> Any:
        """Server-side apply, forced: fields of `body` become ours, former fields of ours go. Raises ApiError."""
        name = body["metadata"]["name"]
        path = resource.path(body["metadata"]["namespace"], name)
        query = {"fieldManager": MANAGER, "force": "true"}
        return await self._write("PATCH", "apply", resource, name, path, body, query, "application/apply-patch+yaml")

    async def patch(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Mapping[str, Any]]
    ) -> Any:
        """Carry out these operations of RFC 6902. Raises ApiError."""
        path, query = resource.path(namespace, name), {"fieldManager": MANAGER}
        return await self._write(
            "PATCH", "patch", resource, name, path, operations, query, "application/json-patch+json"
        )

    async def patch_status(self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any]) -> Any:
        """Merge `patch` into an object's status. Raises ApiError."""
        path = resource.path(namespace, name, "status")
        query = {"fieldManager": MANAGER}
        return await self._write("PATCH", "patch", resource, name, path, patch, query, "application/merge-patch+json")

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Any:
        """Delete this very object; what it owns goes after it. Raises ApiError."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        return await self._write("DELETE", "delete", resource, name, resource.path(namespace, name), body)

    async def watch(
        self, path: str, query: Mapping[str, str], quiet_seconds: float, *, metadata_only: bool = False
    ) -> AsyncIterator[Any]:
        """Events until the server ends the stream, or is silent for too long. Raises ApiError."""
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS, sock_read=quiet_seconds)
        accept = _METADATA_ONLY.format("") if metadata_only else "application/json"
        what = f"watch {path}"
        watching = {**query, "watch": "true"}
        response = await self._send(what, "GET", path, watching, None, accept, "application/json", timeout)
        try:
            with _mapped(what):
                while line := await response.content.readline():
                    yield json.loads(line)
        finally:
            response.close()

    async def _write(
        self,
        method: str,
        verb: str,
        resource: Resource,
        name: str,
        path: str,
        body: _Body,
        query: Mapping[str, str] | None = None,
        content_type: str = "application/json",
    ) -> Any:
        self.guard()
        API_WRITES.labels(verb, resource.kind).inc()
        what = f"{verb} {resource.kind} {name}"
        return await self._answer(method, path, query, body, content_type=content_type, what=what)

    async def _answer(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: _Body | None = None,
        *,
        accept: str = "application/json",
        content_type: str = "application/json",
        what: str = "",  # for messages; empty = method and path
    ) -> Any:
        timeout = _READ if method == "GET" else _WRITE
        what = what or f"{method} {path}"
        response = await self._send(what, method, path, query, body, accept, content_type, timeout)
        with _mapped(what):
            return json.loads(await response.read())

    async def _send(
        self,
        what: str,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: _Body | None,
        accept: str,
        content_type: str,
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own, with several limits
    ) -> aiohttp.ClientResponse:
        with _mapped(what):
            request = await self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params={"Accept": accept, "Content-Type": content_type},
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = await self._client.call_api(*request, _request_timeout=timeout)
            response: aiohttp.ClientResponse = answer.response
            if response.status >= 300:
                raise ApiError(what, response.status, _json(await response.text()))
        return response


def own_namespace() -> str:
    """Of the pod that this process runs in; empty outside a cluster."""
    return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() if _NAMESPACE_FILE.exists() else ""


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Turns what the libraries raise into the operator's errors."""
    try:
        yield
    except (aiohttp.ClientError, OSError, ConfigException, json.JSONDecodeError) as error:
        raise Unreachable(what, error) from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"message": text[:200]}
