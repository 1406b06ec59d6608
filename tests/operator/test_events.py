"""Events as `kubectl describe` wants them."""

from typing import Any

import kubernetes_validate

from tests.operator.fake_server import FakeServer
from v4_core.kubernetes import API_VERSION, KIND
from v4_operator import events
from v4_operator.api import Api
from v4_operator.status_patch import Transition

PARENT: dict[str, Any] = {
    "apiVersion": API_VERSION,
    "kind": KIND,
    "metadata": {"namespace": "n", "name": "d", "uid": "u", "resourceVersion": "7"},
}


async def test_every_transition_is_an_event_of_its_v4deployment(server: FakeServer, api: Api) -> None:
    told = [
        Transition("Warning", "NameTaken", "Degraded is True: x"),
        Transition("Normal", "Serving", "Ready is True: y"),
    ]
    await events.post(api, PARENT, told)
    await events.post(api, PARENT, told[:1])
    made = list(server.objects.values())
    assert [(event["type"], event["reason"], event["message"]) for event in made] == [
        ("Warning", "NameTaken", "Degraded is True: x"),
        ("Normal", "Serving", "Ready is True: y"),
        ("Warning", "NameTaken", "Degraded is True: x"),
    ]
    assert len({event["metadata"]["name"] for event in made}) == 3
    for event in made:
        reference = {"apiVersion": API_VERSION, "kind": KIND, **PARENT["metadata"]}
        assert event["involvedObject"] == reference
        assert event["metadata"]["name"].startswith("d.")
        kubernetes_validate.validate(event, "1.36", strict=True)
