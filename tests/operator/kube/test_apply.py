"""Only objects that differ are written, objects of others never, and one error does not hide another."""

import copy
from typing import Any

import pytest
from aiohttp import web

from tests.kube.fake_server import FakeServer, status
from v4_core.kubernetes import DEPLOYMENT_LABEL, MANAGED_BY_LABEL, MANAGER, Json
from v4_kube.client import KubeClient
from v4_kube.errors import ApiError
from v4_operator.errors import Failure, KindMissing, Leaving, NameTaken
from v4_operator.kube.apply import Applier
from v4_operator.kube.cache import Children
from v4_operator.kube.discovery import Discovery
from v4_operator.observed.compare import APPLIED_ANNOTATION, CREATE_ONLY_ANNOTATION

A = "/api/v1/namespaces/n/configmaps/a"


def desired(name: str = "a", *, kind: str = "ConfigMap", uid: str = "d-1", **body: Any) -> dict[str, Any]:
    owner = {"apiVersion": "v4serve.dev/v1alpha1", "kind": "V4Deployment", "name": "d", "uid": uid, "controller": True}
    labels = {DEPLOYMENT_LABEL: "d", MANAGED_BY_LABEL: MANAGER}
    metadata = {"namespace": "n", "name": name, "labels": labels, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": kind, "metadata": metadata, "data": {"x": "1"}, **body}


def create_only(obj: dict[str, Any]) -> dict[str, Any]:
    obj["metadata"]["annotations"] = {CREATE_ONLY_ANNOTATION: "true"}
    return obj


class Cluster:
    """An applier and its cache, which gets every change at once."""

    def __init__(self, server: FakeServer, api: KubeClient) -> None:
        self.server, self.children = server, Children(lambda _: None)
        self.applier = Applier(api, Discovery(api), self.children)

    async def put(self, path: str, obj: dict[str, Any]) -> None:
        self.children.put(await self.server.put(path, obj))

    async def apply(self, *objects: Json) -> list[Failure]:
        return await self.applier.apply(objects, lambda: True)

    @property
    def writes(self) -> list[str]:
        return [request for request in self.server.requests if not request.startswith("GET")]


@pytest.fixture
def cluster(server: FakeServer, api: KubeClient) -> Cluster:
    return Cluster(server, api)


async def test_an_object_is_created_once_and_not_written_again(cluster: Cluster) -> None:
    assert await cluster.apply(desired("a"), desired("b")) == []
    assert cluster.server.objects[A]["data"] == {"x": "1"}
    assert cluster.server.objects[A]["metadata"]["annotations"][APPLIED_ANNOTATION]
    asked = len(cluster.server.requests)
    assert await cluster.apply(desired("a"), desired("b")) == []
    assert len(cluster.server.requests) == asked, "not even a read"


async def test_a_change_and_drift_are_written(cluster: Cluster) -> None:
    await cluster.apply(desired())
    await cluster.apply(desired(data={"x": "2"}))
    assert cluster.server.objects[A]["data"] == {"x": "2"}
    live = cluster.server.objects[A]
    await cluster.put(A, {**live, "data": {"x": "3"}})
    await cluster.apply(desired(data={"x": "2"}))
    assert cluster.server.objects[A]["data"] == {"x": "2"}
    assert cluster.writes == [f"PATCH {A}"] * 3


async def test_a_write_that_changes_nothing_is_not_repeated(cluster: Cluster) -> None:
    """A server may store a field in a form that always differs from the desired one."""
    await cluster.apply(desired(list=[{"name": "a"}]))
    live = cluster.server.objects[A]
    await cluster.put(A, {**live, "list": [{"name": "a"}, {"name": "of another manager"}]})
    cluster.server.fault = lambda request: (
        web.json_response(cluster.server.objects[A]) if request.method == "PATCH" else None
    )
    for _ in range(3):
        assert await cluster.apply(desired(list=[{"name": "a"}])) == []
    assert len(cluster.writes) == 2
    await cluster.put(A, {**live, "list": [{"name": "b"}]})
    await cluster.apply(desired(list=[{"name": "a"}]))
    assert len(cluster.writes) == 3, "it changed again"


async def test_the_content_of_create_only_objects_is_never_changed(cluster: Cluster) -> None:
    assert await cluster.apply(create_only(desired(data={"x": "1"}))) == []
    assert await cluster.apply(create_only(desired(data={"x": "2"}))) == []
    assert cluster.writes == ["POST /api/v1/namespaces/n/configmaps"]
    assert cluster.server.objects[A]["data"] == {"x": "1"}


async def test_create_only_objects_get_owner_and_labels_back_and_keep_their_content(cluster: Cluster) -> None:
    """`kubectl delete --cascade=orphan` removes the owner; the next V4Deployment of the name becomes the owner."""
    await cluster.apply(create_only(desired(uid="d-0", data={"x": "1"})))
    orphan = copy.deepcopy(cluster.server.objects[A])
    del orphan["metadata"]["ownerReferences"]
    orphan["metadata"]["labels"]["theirs"] = "1"
    await cluster.server.remove(A)
    cluster.children.remove(cluster.children.get("ConfigMap", "n", "a") or {})
    await cluster.put(A, orphan)
    wanted = create_only(desired(uid="d-1", data={"x": "2"}))
    assert await cluster.apply(wanted) == []
    adopted = cluster.server.objects[A]
    assert [owner["uid"] for owner in adopted["metadata"]["ownerReferences"]] == ["d-1"]
    assert adopted["data"] == {"x": "1"}
    assert adopted["metadata"]["labels"] == wanted["metadata"]["labels"] | {"theirs": "1"}
    writes = len(cluster.writes)
    assert await cluster.apply(create_only(desired(uid="d-1", data={"x": "3"}))) == []
    assert len(cluster.writes) == writes
    adopted["metadata"]["labels"][DEPLOYMENT_LABEL] = "e"
    await cluster.put(A, adopted)
    assert await cluster.apply(wanted) == []
    assert cluster.server.objects[A]["metadata"]["labels"][DEPLOYMENT_LABEL] == "d"
    assert cluster.server.objects[A]["data"] == {"x": "1"}


async def test_an_object_that_is_not_in_the_cache_yet_is_not_created_twice(cluster: Cluster, api: KubeClient) -> None:
    other = Cluster(cluster.server, api)
    await cluster.apply(desired("a"), create_only(desired("b")))
    assert await other.apply(desired("a"), create_only(desired("b"))) == []
    assert len(other.writes) == 2


@pytest.mark.parametrize("only", [False, True])
async def test_the_objects_of_others_are_not_taken_over(cluster: Cluster, only: bool) -> None:
    foreign = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": "a"}, "data": {"y": "2"}}
    await cluster.server.put(A, foreign)
    before = copy.deepcopy(cluster.server.objects[A])
    wanted = create_only(desired()) if only else desired()
    errors = await cluster.apply(wanted, desired("b"))
    assert [type(error) for error in errors] == [NameTaken]
    assert "ConfigMap a exists and was not created by this operator" in str(errors[0])
    assert cluster.server.objects[A] == before
    assert "/api/v1/namespaces/n/configmaps/b" in cluster.server.objects


async def test_an_object_of_ours_that_lost_its_labels_gets_them_back(cluster: Cluster) -> None:
    await cluster.apply(desired("a"))
    bare = cluster.server.objects[A]
    del bare["metadata"]["labels"]
    bare = await cluster.server.put(A, bare)
    cluster.children.remove(bare)  # as the watch does, which has labelled objects only
    assert await cluster.apply(desired("a")) == []
    assert cluster.server.objects[A]["metadata"]["labels"] == desired("a")["metadata"]["labels"]


async def test_a_claim_without_an_owner_is_shared(cluster: Cluster) -> None:
    claim = create_only(desired())
    del claim["metadata"]["ownerReferences"]
    await cluster.server.put(A, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "n", "name": "a"}})
    assert await cluster.apply(claim) == []
    assert cluster.writes == []


async def test_the_objects_of_a_former_v4deployment_are_waited_for(cluster: Cluster) -> None:
    await cluster.apply(desired(uid="d-0"))
    errors = await cluster.apply(desired(uid="d-1"))
    assert [type(error) for error in errors] == [Leaving]
    await cluster.server.remove(A)
    cluster.children.remove(cluster.children.get("ConfigMap", "n", "a") or {})
    assert await cluster.apply(desired(uid="d-1")) == []


async def test_an_object_that_was_replaced_meanwhile_is_not_written(cluster: Cluster) -> None:
    await cluster.apply(desired())
    await cluster.server.remove(A)
    await cluster.server.put(A, {"metadata": {"namespace": "n", "name": "a"}})
    errors = await cluster.apply(desired(data={"x": "2"}))
    assert [(type(error), error.status) for error in errors if isinstance(error, ApiError)] == [(ApiError, 409)]
    assert "data" not in cluster.server.objects[A]


@pytest.mark.parametrize("by_itself", [False, True])
async def test_conflicting_fields_of_other_managers_are_removed(cluster: Cluster, by_itself: bool) -> None:
    """For instance a budget with both numbers, or a volume with two sources: the server merges them, then refuses."""

    def both(request: web.Request) -> web.StreamResponse | None:
        if request.method != "PATCH":
            return None
        if request.content_type == "application/json-patch+json":
            return status(422, "Invalid", "cannot be replaced") if by_itself else None
        wrong = by_itself or "theirs" in cluster.server.objects[A]["spec"]
        return status(422, "Invalid", "cannot both be set") if wrong else None

    await cluster.apply(desired(spec={"ours": 1}))
    await cluster.put(A, {**cluster.server.objects[A], "spec": {"theirs": 1}})
    cluster.server.fault = both
    errors = await cluster.apply(desired(spec={"ours": 1}))
    assert [str(error) for error in errors] == (["apply ConfigMap a: cannot both be set"] if by_itself else [])
    assert cluster.server.objects[A]["spec"] == ({"theirs": 1} if by_itself else {"ours": 1})


async def test_a_conflict_while_removing_fields_of_others_is_retried(cluster: Cluster) -> None:
    def refuse(request: web.Request) -> web.StreamResponse | None:
        if request.method != "PATCH":
            return None
        patch = request.content_type == "application/json-patch+json"
        return status(409, "Conflict", "changed") if patch else status(422, "Invalid", "cannot both be set")

    await cluster.apply(desired(spec={"ours": 1}))
    await cluster.put(A, {**cluster.server.objects[A], "spec": {"theirs": 1}})
    cluster.server.fault = refuse
    (error,) = await cluster.apply(desired(spec={"ours": 1}))
    assert isinstance(error, ApiError)
    assert (error.status, error.passing) == (409, True)


async def test_labels_that_others_added_to_a_selector_are_removed_on_an_old_server(cluster: Cluster) -> None:
    """The fake server merges what is applied, as an old server does with selectors."""
    await cluster.apply(desired(spec={"selector": {"role": "router"}, "ports": [{"port": 1}]}))
    given = {"clusterIP": "10.0.0.1", "ports": [{"port": 1}]}
    added = {"selector": {"role": "router", "more": "1"}, **given}
    await cluster.put(A, {**cluster.server.objects[A], "spec": added})
    for _ in range(2):
        assert await cluster.apply(desired(spec={"selector": {"role": "router"}, "ports": [{"port": 1}]})) == []
    assert cluster.server.objects[A]["spec"] == {"selector": {"role": "router"}, **given}
    assert len(cluster.writes) == 4, "it was made, applied, replaced, applied"
    template = {"nodeSelector": {"disk": "fast"}}
    await cluster.apply(desired("b", spec={"template": template}))
    path = "/api/v1/namespaces/n/configmaps/b"
    added = {"template": {"nodeSelector": {"disk": "fast", "more": "1"}}}
    await cluster.put(path, {**cluster.server.objects[path], "spec": added})
    assert await cluster.apply(desired("b", spec={"template": template})) == []
    assert cluster.server.objects[path]["spec"] == added, "no pod starts anew for it"


async def test_one_error_neither_hides_others_nor_stops_writes(cluster: Cluster) -> None:
    cluster.server.fault = lambda r: status(403, "Forbidden", "no") if r.path.endswith("/b") else None
    errors = await cluster.apply(desired("a"), desired("b"), desired(kind="Unheard"), desired("c"))
    assert [type(error) for error in errors] == [ApiError, KindMissing]
    assert sorted(path.rpartition("/")[2] for path in cluster.server.objects) == ["a", "c"]


async def test_a_version_that_the_server_no_longer_has_is_noticed(cluster: Cluster) -> None:
    await cluster.apply(desired("a"))
    del cluster.server.kinds["v1"]
    cluster.server.fault = lambda r: status(404, "NotFound") if r.method == "PATCH" else None
    errors = await cluster.apply(desired("a", data={"x": "2"}))
    assert [str(error) for error in errors] == ["apply ConfigMap a: NotFound"]
    errors = await cluster.apply(desired("a", data={"x": "2"}))
    assert [type(error) for error in errors] == [KindMissing]


async def test_nothing_is_written_after_the_owner_is_deleted(cluster: Cluster) -> None:
    answers = [True, False]
    assert await cluster.applier.apply([desired("a"), desired("b"), desired("c")], lambda: answers.pop(0)) == []
    assert list(cluster.server.objects) == [A]


async def test_pruning(cluster: Cluster) -> None:
    await cluster.apply(desired("a"), desired("b"), desired("c"))
    live = {name: cluster.children.get("ConfigMap", "n", name) or {} for name in "abc"}
    leaving = {**live["c"], "metadata": {**live["c"]["metadata"], "deletionTimestamp": "now"}}
    await cluster.server.remove("/api/v1/namespaces/n/configmaps/b")
    assert await cluster.applier.prune([live["a"], live["b"], leaving]) == []
    assert list(cluster.server.objects) == ["/api/v1/namespaces/n/configmaps/c"]
    assert [write for write in cluster.writes if write.startswith("DELETE")] == [
        "DELETE /api/v1/namespaces/n/configmaps/a",
        "DELETE /api/v1/namespaces/n/configmaps/b",
    ]
    assert cluster.children.get("ConfigMap", "n", "a") is None


async def test_pruning_spares_another_object_of_the_name_and_returns_errors(cluster: Cluster) -> None:
    await cluster.apply(desired("a"), desired("b"))
    live = [cluster.children.get("ConfigMap", "n", name) or {} for name in "ab"]
    await cluster.server.remove(A)
    await cluster.server.put(A, {"metadata": {"namespace": "n", "name": "a"}})
    cluster.server.fault = lambda r: status(403, "Forbidden", "no") if r.path.endswith("/b") else None
    errors = await cluster.applier.prune(live)
    assert [str(error) for error in errors] == ["delete ConfigMap b: no"]
    assert A in cluster.server.objects
