"""Changes of model, chart and control plane, each with an operator that is restarted in its middle.

Streams must not notice any of it, but for the outage that is asked for, and said, where workers are to be replaced
one by one and there is but one.
"""

import time
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import image as project_image
from tests.cluster.answers import DEMO, Answers, answers, other_model
from tests.cluster.installed import NAME, Installed, more_streams, under_load
from tests.cluster.machine.local import LocalCluster

pytestmark = pytest.mark.cluster

TOKENS = 160


@pytest.fixture(autouse=True)
def _service(installed: Installed) -> None:
    if not isinstance(installed.cluster, LocalCluster):
        pytest.skip("needs a folder of the node, the Service itself, and an API server that can be stopped")


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers differently; on this machine's node it has the same path."""
    return other_model(tmp_path_factory.mktemp("model") / "other")


def _serve(installed: Installed, strategy: str, folder: Path | None = None) -> None:
    """Serve the model of a folder, or the shipped one."""
    source: dict[str, Any] = {"demo": {}, "hostPath": None}
    if folder:
        source = {"demo": None, "hostPath": {"path": str(folder)}}
    installed.patch({"model": source, "rollout": {"strategy": strategy}})


def test_another_model_surges_and_replaces(demo: Installed, other: Path) -> None:
    """There and back: beside the old workers, which loses no stream; then instead of them, with one of each."""
    before, right = demo.revision(), (answers(DEMO, TOKENS), answers(other, TOKENS))
    with under_load(demo, *right):
        _serve(demo, "Surge", other)
        demo.restart_operator()
        demo.settle()
    assert demo.revision() != before
    _answers_now(demo, right[1])
    outage: list[float] = []
    with under_load(
        demo, *right, may_fail=lambda stream: outage[0] < stream.ended and stream.began < outage[1]
    ) as load:
        outage.append(time.monotonic())
        _serve(demo, "Replace")
        demo.restart_operator()
        said = demo.wait_for("Progressing", "Outage")
        assert "nothing serves until its successor is ready" in said
        demo.settle()
        outage.append(time.monotonic())
    assert all(not stream.ids for stream in load.failed()), "who had a stream keeps it"
    assert demo.revision() == before
    _answers_now(demo, right[0])


def _answers_now(installed: Installed, right: Answers) -> None:
    with under_load(installed, right):
        pass


def test_the_chart_is_upgraded(demo: Installed) -> None:
    """Nothing that serves restarts, though labels and default images are new."""
    pods = demo.pods_as_they_are()
    repository, _, tag = project_image.OTHER_IMAGE.rpartition(":")
    new = {"repository": repository, "tag": tag}
    try:
        with under_load(demo, answers(DEMO, TOKENS)):
            demo.helm("upgrade", image={"router": new, "worker": new}, **{"global": {"labels": {"team": "a"}}})
            demo.restart_operator()
            demo.cluster.wait(lambda: demo.get("service", NAME)["metadata"]["labels"].get("team") == "a", 120, "labels")
            demo.settle()
        assert demo.pods_as_they_are() == pods
    finally:
        demo.helm("upgrade")


def test_the_api_server_restarts(demo: Installed) -> None:
    """Routers serve on without it; operator and routers follow the cluster again after it."""
    pods = demo.pods_as_they_are()
    with under_load(demo, answers(DEMO, TOKENS)) as load:
        demo.cluster.stop_api_server()
        more_streams(demo, load)
        demo.cluster.start_api_server()
        demo.restart_operator()
        demo.kubectl("scale", f"v4d/{NAME}", "--replicas=2")
        demo.settle()
    assert pods.items() < demo.pods_as_they_are().items()
