"""The operator's watches: kinds, namespaces, labels, Secrets, and the cache of children."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web

from tests.kube.fake_server import FakeServer, status
from tests.operator.conftest import until
from v4_core.kubernetes import DEPLOYMENT_LABEL
from v4_kube.client import KubeClient, Resource
from v4_operator.kube.cache import Children
from v4_operator.kube.watch import Watches
from v4_operator.metrics import REGISTRY
from v4_operator.observed.objects import Key

CONFIG_MAPS = Resource("v1", "ConfigMap", "configmaps")
SECRETS = Resource("v1", "Secret", "secrets")
BUDGETS = Resource("policy/v1beta1", "PodDisruptionBudget", "poddisruptionbudgets")
D = Key("n", "d")


def path(name: str, namespace: str = "n", resource: Resource = CONFIG_MAPS) -> str:
    return resource.path(namespace, name)


def obj(name: str, namespace: str = "n", **body: Any) -> dict[str, Any]:
    labels = {DEPLOYMENT_LABEL: "d"}
    return {"metadata": {"namespace": namespace, "name": name, "labels": labels}, **body}


class Followed:
    """The watches, and the changes that they reported."""

    def __init__(self, api: KubeClient, *namespaces: str) -> None:
        self.changed: list[Key] = []
        self.children = Children(self.changed.append)
        self.errors: list[BaseException] = []
        self.watches = Watches(api, namespaces or ("",), self.children, self.ended)

    def ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            self.errors.append(error)

    def names(self, kind: str = "ConfigMap", key: Key = D) -> set[str]:
        return {child["metadata"]["name"] for child in self.children.of(key, "uid") if child["kind"] == kind}


@pytest.fixture
async def followed(api: KubeClient) -> AsyncIterator[Followed]:
    made = Followed(api)
    yield made
    await made.watches.close()
    assert made.errors == []


async def test_lists_and_changes_reach_the_cache(server: FakeServer, followed: Followed) -> None:
    await server.put(path("a"), obj("a"))
    followed.watches.follow([CONFIG_MAPS])
    assert followed.watches.missing() == ["/api/v1/configmaps"]
    await followed.watches.synced()
    assert followed.watches.missing() == []
    assert followed.changed == [D]
    assert followed.children.get("ConfigMap", "n", "a")
    await server.put(path("b"), obj("b", data={"x": "1"}))
    await until(lambda: followed.names() == {"a", "b"})
    await server.remove(path("a"))
    await until(lambda: followed.names() == {"b"})
    assert followed.changed == [D] * 3
    left = followed.children.of(D, "uid")[0]
    assert (left["apiVersion"], left["kind"]) == ("v1", "ConfigMap")


async def test_only_labelled_objects_are_asked_for_and_secrets_without_their_contents(
    server: FakeServer, followed: Followed
) -> None:
    asked: list[tuple[str, str, str]] = []

    def look(request: web.Request) -> None:
        asked.append((request.path, request.query["labelSelector"], request.headers["Accept"].partition(";")[2]))

    server.fault = look
    followed.watches.follow([CONFIG_MAPS, SECRETS])
    await until(lambda: len(asked) == 4)
    assert {selector for _, selector, _ in asked} == {"app.kubernetes.io/managed-by=v4serve-operator"}
    assert {accept for at, _, accept in asked if at.endswith("configmaps")} == {""}
    assert {accept.partition(";")[0] for at, _, accept in asked if at.endswith("secrets")} == {
        "as=PartialObjectMetadataList",
        "as=PartialObjectMetadata",
    }


async def test_restarts_are_counted_from_zero(server: FakeServer, followed: Followed) -> None:
    def counted() -> float | None:
        return REGISTRY.get_sample_value("v4serve_operator_watch_restarts_total", {"kind": "Gizmo"})

    server.fault = lambda request: status(500, "not now") if request.path.endswith("gizmos") else None
    followed.watches.follow([Resource("v1", "Gizmo", "gizmos")])
    assert counted() == 0
    await until(lambda: counted() == 1)


async def test_a_watch_that_is_always_refused_is_logged(
    server: FakeServer, followed: Followed, caplog: pytest.LogCaptureFixture
) -> None:
    """Although every list succeeds."""
    server.fault = lambda request: status(403, "Forbidden", "no watch") if "watch" in request.query else None
    followed.watches.follow([CONFIG_MAPS])
    await until(lambda: "no watch; trying again" in caplog.text)


async def test_namespaces_are_watched_one_by_one(server: FakeServer, api: KubeClient) -> None:
    await server.put(path("a", "n"), obj("a", "n"))
    await server.put(path("b", "m"), obj("b", "m"))
    await server.put(path("c", "other"), obj("c", "other"))
    followed = Followed(api, "n", "m")
    followed.watches.follow([CONFIG_MAPS])
    await followed.watches.synced()
    assert set(followed.changed) == {D, Key("m", "d")}
    await server.put(path("d", "m"), obj("d", "m"))
    await until(lambda: followed.names(key=Key("m", "d")) == {"b", "d"})
    assert not [request for request in server.requests if request == "GET /api/v1/configmaps"]
    await followed.watches.close()


async def test_kinds_come_and_go(server: FakeServer, followed: Followed) -> None:
    await server.put(path("a", resource=BUDGETS), obj("a"))
    followed.watches.follow([CONFIG_MAPS, BUDGETS])
    await followed.watches.synced()
    assert followed.names("PodDisruptionBudget") == {"a"}
    newer = Resource("policy/v1", BUDGETS.kind, BUDGETS.plural)
    server.kinds["policy/v1"] = {BUDGETS.plural: BUDGETS.kind}
    await server.put(path("b", resource=newer), obj("b"))
    followed.watches.follow([CONFIG_MAPS, newer])
    await until(lambda: followed.names("PodDisruptionBudget") == {"b"})
