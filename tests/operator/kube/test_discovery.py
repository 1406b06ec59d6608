"""Discovery of the server's version and kinds."""

import pytest

from tests.kube.fake_server import FakeServer, status
from v4_core.kubernetes import API_VERSION
from v4_kube.client import KubeClient, Resource
from v4_kube.errors import ApiError
from v4_operator.errors import KindMissing
from v4_operator.kube.discovery import Discovery, Features
from v4_operator.manifests.download import ASSIGNS_GROUPS


async def test_versions_kinds_and_paths(server: FakeServer, api: KubeClient) -> None:
    discovery = Discovery(api)
    features = await discovery.refresh()
    assert features.version == (1, 20)
    assert ("apps/v1", "Deployment") in features.kinds
    assert await discovery.resource("v1", "Secret") == Resource("v1", "Secret", "secrets")
    assert features.v4deployments == Resource(API_VERSION, "V4Deployment", "v4deployments")
    assert [(child.kind, child.api_version) for child in features.children()] == [
        ("Pod", "v1"),
        ("ConfigMap", "v1"),
        ("Secret", "v1"),
        ("Deployment", "apps/v1"),
        ("PodDisruptionBudget", "policy/v1beta1"),
    ]
    server.kinds["policy/v1"] = server.kinds["policy/v1beta1"]
    budget = (await discovery.refresh()).children()[-1]
    assert budget.api_version == "policy/v1"


async def test_a_kind_that_was_installed_later_is_found(server: FakeServer, api: KubeClient) -> None:
    discovery = Discovery(api)
    custom = server.kinds.pop(API_VERSION)
    assert (await discovery.refresh()).v4deployments is None
    with pytest.raises(KindMissing, match=r"the API server has no V4Deployment in v4serve\.dev/v1alpha1"):
        await discovery.resource(API_VERSION, "V4Deployment")
    server.kinds[API_VERSION] = custom
    assert (await discovery.resource(API_VERSION, "V4Deployment")).plural == "v4deployments"


async def test_a_group_that_was_removed_is_absent_and_an_error_keeps_the_result(
    server: FakeServer, api: KubeClient
) -> None:
    discovery = Discovery(api)
    known = await discovery.refresh()
    server.fault = lambda request: status(503, "down") if request.path == "/apis" else None
    with pytest.raises(ApiError, match="down"):
        await discovery.refresh()
    assert discovery.features is known
    server.fault = lambda request: status(404, "NotFound") if request.path == "/apis/apps/v1" else None
    assert ("apps/v1", "Deployment") not in (await discovery.refresh()).kinds


async def test_a_platform_that_gives_pods_a_group_is_recognised(server: FakeServer, api: KubeClient) -> None:
    assert ASSIGNS_GROUPS not in (await Discovery(api).refresh()).kinds
    server.kinds["security.openshift.io/v1"] = {"securitycontextconstraints": "SecurityContextConstraints"}
    assert ASSIGNS_GROUPS in (await Discovery(api).refresh()).kinds


def test_before_a_discovery_there_are_no_features() -> None:
    assert Features().children() == []
    assert Features().kinds == frozenset()
