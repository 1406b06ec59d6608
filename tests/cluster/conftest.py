"""The clusters that tests of this folder share: made when first asked for, dumped on a failure, gone at the end."""

import os
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import pytest

from tests.cluster import image as project_image
from tests.cluster.installed import Installed
from tests.cluster.machine import build
from tests.cluster.machine.cluster import Cluster, ServingCluster
from tests.cluster.machine.errors import ClusterError, PartMissing
from tests.cluster.machine.external import ExternalCluster
from tests.cluster.machine.local import LocalCluster
from tests.cluster.machine.local_control_plane import ControlPlane

_KUBECONFIG = os.environ.get("V4SERVE_TEST_KUBECONFIG")
_CLUSTERS = ("cluster", "control_plane")


@dataclass(frozen=True)
class Parts:
    """What was built for one of _CLUSTERS, or why it could not be."""

    archives: Sequence[Path] = ()
    crd_server: Path | None = None
    missing: Mapping[str, ClusterError] = field(default_factory=dict)  # fixture -> why there is none


_RUNNING = pytest.StashKey[dict[str, Cluster]]()  # by the fixture's name, as the next
_PARTS = pytest.StashKey[dict[str, Parts]]()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Build what a cluster needs before its first test: minutes once, which no test's time limit counts here."""
    built = item.session.stash.setdefault(_PARTS, {})
    for name in (name for name in _CLUSTERS if name in _fixtures(item) and name not in built and not _KUBECONFIG):
        wanted = set[str]().union(*map(_fixtures, item.session.items))
        capture = item.config.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            built[name] = _with_node(wanted) if name == "cluster" else _without_node(wanted)
    return (yield)


def _fixtures(item: pytest.Item) -> Sequence[str]:
    """Those of a test of this folder; tests elsewhere have fixtures of the same names."""
    return item.fixturenames if isinstance(item, pytest.Function) and item.get_closest_marker("cluster") else ()


def _with_node(wanted: Set[str]) -> Parts:
    try:
        if "image" not in wanted:
            build.parts()
            return Parts()
        if reason := project_image.lacks():
            raise PartMissing(reason)
        build.install()
        # Side by side: one is mostly compiling, the other mostly fetching and unpacking.
        with ThreadPoolExecutor() as pool:
            parts, image = pool.submit(build.parts), pool.submit(project_image.build)
            parts.result()
            return Parts([image.result()])
    except ClusterError as error:
        return Parts(missing={"cluster": error})


def _without_node(wanted: Set[str]) -> Parts:
    try:
        build.parts()
    except ClusterError as error:
        return Parts(missing={"control_plane": error})
    try:
        return Parts(crd_server=build.crd_server_binary() if "crd_server" in wanted else None)
    except ClusterError as error:
        return Parts(missing={"crd_server": error})


def skip_or_fail(reason: str) -> None:
    """A missing part fails where CI=true, and skips elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[ServingCluster]:
    """One running cluster: a new one on this machine, or the one that V4SERVE_TEST_KUBECONFIG names."""
    yield from _running(request, _external() or LocalCluster(_parts(request, "cluster").archives))


@pytest.fixture(scope="session")
def control_plane(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """API server and controllers for tests that need no pod to run: here pods are made, and never placed."""
    if external := _external():
        yield from _running(request, external)
    else:
        _parts(request, "control_plane")
        yield from _running(request, ControlPlane())


def _parts(request: pytest.FixtureRequest, cluster: str) -> Parts:
    """What was built for a cluster. Skips or fails where that lacks what the fixture needs. Raises ClusterError."""
    parts = request.session.stash[_PARTS][cluster]
    assert request.fixturename
    error = parts.missing.get(request.fixturename)
    if isinstance(error, PartMissing):
        skip_or_fail(str(error))
    elif error:
        raise error
    return parts


C = TypeVar("C", bound=Cluster)


def _running(request: pytest.FixtureRequest, cluster: C) -> Iterator[C]:
    """The cluster, known to reports of failed tests, and closed at the end."""
    assert request.fixturename
    running = request.session.stash.setdefault(_RUNNING, {})
    running[request.fixturename] = cluster
    try:
        yield cluster
    finally:
        del running[request.fixturename]
        cluster.close()


def _external() -> ExternalCluster | None:
    return ExternalCluster(Path(_KUBECONFIG), os.environ.get("V4SERVE_TEST_IMAGE", "")) if _KUBECONFIG else None


@pytest.fixture(scope="session")
def image(cluster: ServingCluster) -> str:
    """Reference of the project's image, which pods of the cluster can use. A test that asks for it has it built."""
    if not cluster.image:
        skip_or_fail("V4SERVE_TEST_IMAGE must name the project's image for the cluster of V4SERVE_TEST_KUBECONFIG")
    return cluster.image


@pytest.fixture(scope="session")
def crd_server(request: pytest.FixtureRequest, control_plane: Cluster) -> Path:
    """Kubeconfig of a current Kubernetes' CRD server, which knows CEL rules; see ControlPlane.start_crd_server."""
    if not isinstance(control_plane, ControlPlane):
        pytest.skip("the CRD server runs beside a control plane on this machine only")
    binary = _parts(request, "control_plane").crd_server
    assert binary
    return control_plane.start_crd_server(binary)


@pytest.fixture(scope="session")
def installed(cluster: ServingCluster, image: str) -> Iterator[Installed]:
    """The chart's release with the demo that it serves. Tests that ask for it come last; see below."""
    if cluster.get("crd", "--field-selector", "metadata.name=v4deployments.v4serve.dev")["items"]:
        pytest.skip("the cluster has a release of the chart already")
    release = Installed(cluster)
    try:
        release.install()
        yield release
    finally:
        release.remove()


@pytest.fixture
def demo(installed: Installed) -> Installed:
    """The release whose demo serves as it was installed: one prefill worker, one decode worker, one router."""
    installed.reset()
    return installed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those of the chart need a cluster without the definition, and so come before a release stays."""
    items.sort(key=lambda item: "installed" in getattr(item, "fixturenames", ()))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the cluster's state beside the report of a failed test."""
    report = yield
    running = item.session.stash.get(_RUNNING, {})
    for cluster in [running[name] for name in _fixtures(item) if name in running] if report.failed else ():
        folder = Path(tempfile.mkdtemp(prefix="v4serve-failure-"))
        try:
            cluster.dump(folder)
            report.sections.append(("cluster", f"its state and logs are in {folder}"))
        except (ClusterError, OSError) as error:
            report.sections.append(("cluster", f"its state could not be read: {error}; what could is in {folder}"))
    return report
