"""Requests to an API server, and the errors for refused and unanswered ones."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.kube.fake_server import FakeServer, serving, status
from v4_core.errors import ConfigError
from v4_kube.client import KubeClient, Resource
from v4_kube.errors import ApiError, Unreachable

CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
PATH = "/api/v1/namespaces/n/configmaps/a"
BODY: dict[str, Any] = {"metadata": {"namespace": "n", "name": "a"}, "data": {"x": "1"}}


def test_paths() -> None:
    assert CONFIG_MAPS.path("n", "a") == PATH
    assert CONFIG_MAPS.path() == "/api/v1/configmaps"
    deployments = Resource("apps/v1", "Deployment", "deployments")
    assert deployments.path("n", "a", "status") == "/apis/apps/v1/namespaces/n/deployments/a/status"


async def test_objects_are_created_changed_and_deleted(server: FakeServer, api: KubeClient) -> None:
    made = await api.create(CONFIG_MAPS, BODY)
    with pytest.raises(ApiError, match="AlreadyExists") as info:
        await api.create(CONFIG_MAPS, BODY)
    assert (info.value.status, info.value.reason, info.value.passing) == (409, "AlreadyExists", True)
    changed = await api.apply(CONFIG_MAPS, {**BODY, "data": {"y": "2"}})
    assert changed["data"] == {"x": "1", "y": "2"}
    patched = await api.patch_status(CONFIG_MAPS, "n", "a", {"metadata": {}, "status": {"z": 3}})
    assert (await api.get(PATH))["status"] == {"z": 3}
    with pytest.raises(ApiError, match="Conflict"):
        await api.replace(CONFIG_MAPS, made)
    await api.replace(CONFIG_MAPS, patched)
    with pytest.raises(ApiError):
        await api.delete(CONFIG_MAPS, "n", "a", "another uid")
    await api.delete(CONFIG_MAPS, "n", "a", made["metadata"]["uid"])
    assert server.objects == {}


async def test_writes_are_counted_and_reads_are_not(tmp_path: Path) -> None:
    writes: list[tuple[str, str]] = []
    async with serving(tmp_path, lambda verb, kind: writes.append((verb, kind))) as (_, api):
        made = await api.create(CONFIG_MAPS, BODY)
        await api.get(PATH)
        await api.exists(CONFIG_MAPS, "n", "a")
        with pytest.raises(ApiError):
            await api.delete(CONFIG_MAPS, "n", "a", "another uid")
        await api.delete(CONFIG_MAPS, "n", "a", made["metadata"]["uid"])
    assert writes == [("create", "ConfigMap"), ("delete", "ConfigMap"), ("delete", "ConfigMap")]


async def test_writes_have_content_type_field_manager_and_token(server: FakeServer, api: KubeClient) -> None:
    seen: list[Any] = []

    def look(request: web.Request) -> None:
        seen.append((request.content_type, dict(request.query), request.headers["Authorization"]))

    server.fault = look
    await api.apply(CONFIG_MAPS, BODY)
    manager = {"fieldManager": "v4serve-operator"}
    assert seen == [("application/apply-patch+yaml", {**manager, "force": "true"}, "Bearer secret")]
    await api.patch_status(CONFIG_MAPS, "n", "a", {"metadata": {}, "status": {}})
    assert seen[1] == ("application/merge-patch+json", manager, "Bearer secret")


async def test_nothing_is_written_against_the_guard(server: FakeServer, api: KubeClient) -> None:
    class Refused(Exception):
        """What a guard may raise."""

    def refuse() -> None:
        raise Refused

    api.guard = refuse
    for write in (api.create(CONFIG_MAPS, BODY), api.apply(CONFIG_MAPS, BODY), api.delete(CONFIG_MAPS, "n", "a", "u")):
        with pytest.raises(Refused):
            await write
    assert server.requests == []
    await api.get("/version")


@pytest.mark.parametrize(
    ("answer", "passing", "message"),
    [
        (lambda: status(403, "Forbidden", "no rights"), False, "GET /version: no rights"),
        (lambda: status(503, "", "etcd is slow"), True, "etcd is slow"),
        (lambda: web.Response(status=502, text="<html>"), True, "<html>"),
        (lambda: web.Response(status=404), False, "HTTP 404"),
        (lambda: web.Response(status=500, text="[]"), True, "HTTP 500"),
        (lambda: web.Response(text='{"cut'), True, "does not answer"),
    ],
)
async def test_refusals(server: FakeServer, api: KubeClient, answer: Any, passing: bool, message: str) -> None:
    server.fault = lambda _: answer()
    with pytest.raises(ApiError, match=message) as info:
        await api.get("/version")
    assert info.value.passing is passing


async def test_a_refused_write_names_its_object_and_the_servers_words(server: FakeServer, api: KubeClient) -> None:
    server.fault = lambda _: status(422, "Invalid", "spec.x: Invalid value")
    writes = {
        "create": api.create(CONFIG_MAPS, BODY),
        "update": api.replace(CONFIG_MAPS, BODY),
        "apply": api.apply(CONFIG_MAPS, BODY),
        "delete": api.delete(CONFIG_MAPS, "n", "a", "u"),
        "patch": api.patch_status(CONFIG_MAPS, "n", "a", {}),
    }
    for verb, write in writes.items():
        with pytest.raises(ApiError) as info:
            await write
        assert (str(info.value), info.value.passing) == (f"{verb} ConfigMap a: spec.x: Invalid value", False)


async def test_no_server_at_all(tmp_path: Path) -> None:
    (tmp_path / "config").write_text(
        json.dumps(
            {
                "current-context": "c",
                "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
                "clusters": [{"name": "k", "cluster": {"server": "http://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {}}],
            }
        )
    )
    api = await KubeClient.connect("test", tmp_path / "config")
    with pytest.raises(Unreachable, match="the API server does not answer"):
        await api.get("/version")
    await api.close()


@pytest.mark.parametrize("text", [None, "{", "{}", "a: [b"])
async def test_no_usable_kubeconfig(tmp_path: Path, text: str | None) -> None:
    file = tmp_path / "config"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=r"API cannot be reached \(.*\): run in a pod .*, or set KUBECONFIG"):
        await KubeClient.connect("test", file)


async def test_a_silent_stream_ends(server: FakeServer, api: KubeClient) -> None:
    query = {"resourceVersion": "1"}

    async def follow() -> list[Any]:
        return [event async for event in api.watch("/api/v1/configmaps", query, quiet_seconds=0.2)]

    with pytest.raises(Unreachable):
        await asyncio.wait_for(follow(), 10)


async def test_refused_credentials_are_read_again(server: FakeServer, api: KubeClient, tmp_path: Path) -> None:
    token = "Bearer renewed"
    server.fault = lambda request: status(401, "Unauthorized") if request.headers["Authorization"] != token else None
    for _ in range(2):
        with pytest.raises(ApiError, match="Unauthorized") as info:
            await api.get("/version")
        assert info.value.passing
    file = tmp_path / "kubeconfig"
    text = file.read_text()
    file.write_text("{")
    with pytest.raises(ApiError, match="GET /version: the Kubernetes API cannot be reached") as info:
        await api.get("/version")
    assert info.value.passing
    file.write_text(text.replace("secret", "renewed"))
    await api.get("/version")
