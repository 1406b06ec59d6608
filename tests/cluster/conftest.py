"""The cluster that all tests of this folder share: made when first asked for, dumped on a failure, gone at the end."""

import os
import tempfile
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path

import pytest

from tests.cluster import image as project_image
from tests.cluster.installed import Installed
from tests.cluster.machine import build
from tests.cluster.machine.cluster import Cluster
from tests.cluster.machine.errors import ClusterError, PartMissing
from tests.cluster.machine.external import ExternalCluster
from tests.cluster.machine.local import LocalCluster

_KUBECONFIG = os.environ.get("V4SERVE_TEST_KUBECONFIG")
_RUNNING = pytest.StashKey[Cluster]()
_ARCHIVES = pytest.StashKey[Sequence[Path]]()
_CRD_SERVER = pytest.StashKey[Path]()
_MISSING = pytest.StashKey[dict[str, str]]()  # fixture -> why there is none


def pytest_collection_finish(session: pytest.Session) -> None:
    """Build what the tests to run need, which takes minutes the first time: here no test's time limit counts."""
    wanted = {name for item in session.items if isinstance(item, pytest.Function) for name in item.fixturenames}
    if "cluster" not in wanted or _KUBECONFIG or session.config.option.collectonly:
        return
    missing = session.stash[_MISSING] = {}
    capture = session.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():
        try:
            session.stash[_ARCHIVES] = _build(with_image="image" in wanted)
        except PartMissing as error:
            missing["cluster"] = str(error)
            return
        if "crd_server" in wanted:
            try:
                session.stash[_CRD_SERVER] = build.crd_server_binary()
            except PartMissing as error:
                missing["crd_server"] = str(error)


def _build(with_image: bool) -> list[Path]:
    build.parts()
    if not with_image:
        return []
    if reason := project_image.lacks():
        raise PartMissing(reason)
    return [project_image.build()]


def skip_or_fail(reason: str) -> None:
    """A missing part fails where CI=true, and skips elsewhere."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """One running cluster: a new one on this machine, or the one that V4SERVE_TEST_KUBECONFIG names."""
    stash = request.session.stash
    if not _KUBECONFIG and "cluster" in stash[_MISSING]:
        skip_or_fail(stash[_MISSING]["cluster"])
    running = _external(_KUBECONFIG) if _KUBECONFIG else LocalCluster(stash[_ARCHIVES])
    stash[_RUNNING] = running
    try:
        yield running
    finally:
        del stash[_RUNNING]
        running.close()


def _external(kubeconfig: str) -> Cluster:
    return ExternalCluster(Path(kubeconfig), os.environ.get("V4SERVE_TEST_IMAGE", ""))


@pytest.fixture(scope="session")
def image(cluster: Cluster) -> str:
    """Reference of the project's image, which pods of the cluster can use. A test that asks for it has it built."""
    if not cluster.image:
        skip_or_fail("V4SERVE_TEST_IMAGE must name the project's image for the cluster of V4SERVE_TEST_KUBECONFIG")
    return cluster.image


@pytest.fixture(scope="session")
def crd_server(request: pytest.FixtureRequest, cluster: Cluster) -> Path:
    """Kubeconfig of a current Kubernetes' CRD server, which knows CEL rules; see LocalCluster.start_crd_server."""
    if not isinstance(cluster, LocalCluster):
        pytest.skip("the CRD server runs beside a cluster on this machine only")
    stash = request.session.stash
    if "crd_server" in stash[_MISSING]:
        skip_or_fail(stash[_MISSING]["crd_server"])
    return cluster.start_crd_server(stash[_CRD_SERVER])


@pytest.fixture(scope="session")
def installed(cluster: Cluster, image: str) -> Iterator[Installed]:
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
    running = item.session.stash.get(_RUNNING, None)
    if report.failed and running and isinstance(item, pytest.Function) and "cluster" in item.fixturenames:
        folder = Path(tempfile.mkdtemp(prefix="v4serve-failure-"))
        try:
            running.dump(folder)
            report.sections.append(("cluster", f"its state and logs are in {folder}"))
        except (ClusterError, OSError) as error:
            report.sections.append(("cluster", f"its state could not be read: {error}; what could is in {folder}"))
    return report
