"""The Kubernetes API as plain JSON: requests, streams, and their errors. Only this module knows HTTP.

Objects are the mappings that the server sends. Every request that changes something calls `guard` and `on_write` first,
so that a replica of the operator that may have lost leadership cannot write.

The kubelet renews the token of a pod in its file. A token of a ServiceAccount that was deleted and created again is
refused until then, which may take an hour. If the server refuses the credentials, they are therefore read again before
the next request.
"""

import json
import os
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from kubernetes.aio.client import ApiClient, Configuration
from kubernetes.aio.config import ConfigException, load_incluster_config, load_kube_config

from v4_core.errors import ConfigError
from v4_kube.errors import ApiError, Unreachable

_Body = Mapping[str, Any] | Sequence[Mapping[str, Any]]

# Timeout of one write. Added to the time for which a leader trusts its last renewal, it is less than the time after
# which another replica may lead (v4_operator.kube.leader_election).
_SECONDS = 10.0
_READ = aiohttp.ClientTimeout(total=60.0, sock_connect=_SECONDS, sock_read=30.0)
_WRITE = aiohttp.ClientTimeout(total=_SECONDS)

_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_METADATA_ONLY = "application/json;as=PartialObjectMetadata{};g=meta.k8s.io;v=v1"


@dataclass(frozen=True)
class Resource:
    """A kind of object, and its name in the server's paths."""

    api_version: str
    kind: str
    plural: str

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Returns the path of one object, of all objects in a namespace, or of all objects."""
        root = f"/apis/{self.api_version}" if "/" in self.api_version else f"/api/{self.api_version}"
        parts = [root, f"namespaces/{namespace}" if namespace else "", self.plural, name, subresource]
        return "/".join(part for part in parts if part)


class KubeClient:
    """A pool of connections to the API server of one cluster.

    `name` is the field manager of writes and the user agent. `guard` is called before each write, and raises if nothing
    may be written. `on_write` is called with the verb and the kind of each write.
    """

    def __init__(
        self,
        name: str,
        configuration: Configuration,
        kubeconfig: Path | None = None,
        on_write: Callable[[str, str], None] = lambda verb, kind: None,
    ) -> None:
        self.configuration = configuration
        self.guard: Callable[[], None] = lambda: None
        self._manager, self._on_write = name, on_write
        self._kubeconfig = kubeconfig
        self._refused = False  # whether the server refused the credentials of the last request
        configuration.connection_pool_maxsize = 0  # every watch keeps one connection for good
        self._client = ApiClient(configuration)
        self._client.user_agent = f"{name}/{version('v4serve')}"

    @classmethod
    async def connect(
        cls,
        name: str,
        kubeconfig: Path | None = None,
        on_write: Callable[[str, str], None] = lambda verb, kind: None,
    ) -> "KubeClient":
        """Returns a client with the credentials of `kubeconfig` or $KUBECONFIG, or else of the pod's service account.

        Raises ConfigError if there are none. Sends no request.
        """
        configuration = Configuration()
        await _read_credentials(configuration, kubeconfig)
        return cls(name, configuration, kubeconfig, on_write)

    async def close(self) -> None:
        """Closes all connections."""
        await self._client.close()

    async def get(self, path: str, query: Mapping[str, str] | None = None, *, metadata_only: bool = False) -> Any:
        """Returns the server's answer. Raises ApiError."""
        accept = _METADATA_ONLY.format("List") if metadata_only else "application/json"
        return await self._answer("GET", path, query, accept=accept)

    async def exists(self, resource: Resource, namespace: str, name: str) -> bool:
        """Whether an object exists; its content is not transferred. Raises ApiError."""
        try:
            await self._answer("GET", resource.path(namespace, name), accept=_METADATA_ONLY.format(""))
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True

    async def create(self, resource: Resource, body: Mapping[str, Any]) -> Any:
        """Creates an object. Raises ApiError, with status 409 if the object exists."""
        metadata = body["metadata"]
        path = resource.path(metadata["namespace"])
        return await self._write("POST", "create", resource, metadata["name"], path, body)

    async def replace(self, resource: Resource, body: Mapping[str, Any]) -> Any:
        """Replaces an object if it still has the resourceVersion of `body`. Raises ApiError."""
        name = body["metadata"]["name"]
        path = resource.path(body["metadata"]["namespace"], name)
        return await self._write("PUT", "update", resource, name, path, body)

    async def apply(self, resource: Resource, body: Mapping[str, Any]) -> Any:
        """Server-side apply with force. Raises ApiError.

        The client's name becomes the manager of the fields of `body`; fields that it managed before are removed.
        """
        name = body["metadata"]["name"]
        path = resource.path(body["metadata"]["namespace"], name)
        query = {"fieldManager": self._manager, "force": "true"}
        return await self._write("PATCH", "apply", resource, name, path, body, query, "application/apply-patch+yaml")

    async def patch(
        self, resource: Resource, namespace: str, name: str, operations: Sequence[Mapping[str, Any]]
    ) -> Any:
        """Applies operations of a JSON patch (RFC 6902). Raises ApiError."""
        path, query = resource.path(namespace, name), {"fieldManager": self._manager}
        return await self._write(
            "PATCH", "patch", resource, name, path, operations, query, "application/json-patch+json"
        )

    async def patch_status(self, resource: Resource, namespace: str, name: str, patch: Mapping[str, Any]) -> Any:
        """Merges `patch` into an object's status (RFC 7386). Raises ApiError."""
        path = resource.path(namespace, name, "status")
        query = {"fieldManager": self._manager}
        return await self._write("PATCH", "patch", resource, name, path, patch, query, "application/merge-patch+json")

    async def delete(self, resource: Resource, namespace: str, name: str, uid: str) -> Any:
        """Deletes the object with this uid, and then, in the background, the objects that it owns. Raises ApiError."""
        body = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        return await self._write("DELETE", "delete", resource, name, resource.path(namespace, name), body)

    async def watch(
        self, path: str, query: Mapping[str, str], quiet_seconds: float, *, metadata_only: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Yields events until the server ends the stream. Raises ApiError, also after a silence of `quiet_seconds`."""
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
        self._on_write(verb, resource.kind)
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
            if self._refused:
                await _read_credentials(self.configuration, self._kubeconfig)
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
            self._refused = response.status == HTTPStatus.UNAUTHORIZED
            if response.status >= 300:
                raise ApiError(what, response.status, _json(await response.text()))
        return response


def own_namespace() -> str:
    """Returns the namespace of the pod that this process runs in, or "" outside a cluster."""
    return _NAMESPACE_FILE.read_text(encoding="utf-8").strip() if _NAMESPACE_FILE.exists() else ""


@contextmanager
def _mapped(what: str) -> Iterator[None]:
    """Turns the errors of libraries, and of credentials that cannot be read again, into ApiError."""
    try:
        yield
    except (aiohttp.ClientError, OSError, ConfigException, json.JSONDecodeError) as error:
        raise Unreachable(what, error) from error
    except ConfigError as error:
        raise ApiError(what, 0, {"message": str(error)}) from error


async def _read_credentials(configuration: Configuration, kubeconfig: Path | None) -> None:
    """Fills in the API server's address and the credentials. Raises ConfigError if they cannot be read."""
    try:
        file = str(kubeconfig) if kubeconfig else os.environ.get("KUBECONFIG")
        if file or not own_namespace():
            await load_kube_config(config_file=file, client_configuration=configuration)
        else:
            load_incluster_config(client_configuration=configuration)
    except (ConfigException, OSError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise ConfigError(
            f"the Kubernetes API cannot be reached ({reason}): run in a pod with a service account, or set KUBECONFIG"
        ) from error


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return {"message": text[:200]}
