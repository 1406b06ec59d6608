"""Events have the fields that `kubectl describe` needs."""

from typing import Any

import kubernetes_validate

from tests.kube.fake_server import FakeServer
from v4_core.kubernetes import API_VERSION, KIND
from v4_kube.client import KubeClient
from v4_operator.kube import events

PARENT: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"namespace": "n", "name": "d", "uid": "u", "resourceVersion": "7"},
}


async def test_every_transition_is_an_event_of_its_v4deployment(server: FakeServer, api: KubeClient) -> None:
    warning, normal = ("Warning", "NameTaken", "Degraded is True: x"), ("Normal", "Serving", "Ready is True: y")
    for transition in (warning, normal, warning):
        await events.post(api, PARENT, *transition)
    made = list(server.objects.values())
    assert [(event["type"], event["reason"], event["message"]) for event in made] == [warning, normal, warning]
    assert len({event["metadata"]["name"] for event in made}) == 3
    for event in made:
        reference = {"apiVersion": API_VERSION, "kind": KIND, **PARENT["metadata"]}
        assert event["involvedObject"] == reference
        assert event["metadata"]["name"].startswith("d.")
        kubernetes_validate.validate(event, "1.36", strict=True)
