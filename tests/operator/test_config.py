"""Invalid settings are refused."""

from dataclasses import replace
from typing import Any

import pytest

from v4_core.errors import ConfigError
from v4_operator.config import OperatorConfig

GOOD = OperatorConfig("worker:1", "router:1", namespaces=("a",))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"namespaces": ()}, "--namespace, once for each namespace to serve, or --all-namespaces"),
        ({"all_namespaces": True}, "--namespace, once for each namespace to serve, or --all-namespaces"),
        ({"namespaces": ("a", "B")}, "'B' is not a namespace or Lease name"),
        ({"namespaces": ("*",)}, "'\\*' is not a namespace or Lease name"),
        ({"worker_image": " "}, "--worker-image and --router-image"),
        ({"router_image": ""}, "--worker-image and --router-image"),
        ({"router_image": "https://example.com/router:1"}, "'https://.* is not an image: .* without a scheme"),
        ({"lease_namespace": "a_b"}, "'a_b' is not a namespace or Lease name"),
        ({"lease_name": ""}, "'' is not a namespace or Lease name"),
        ({"lease_name": "a..b"}, "'' is not a namespace or Lease name"),
        ({"common_labels": {"a b": "c"}}, "a b=c is not a label"),
        ({"common_labels": {"a": "x" * 64}}, "is not a label"),
        ({"operator_labels": {"a/b/c": "d"}}, "is not a label"),
        ({"common_labels": {"a": 1}}, "a=1 is not a label"),
        (
            {"scrape_from": ({"pods": {}},)},
            "{'pods': {}} is not a NetworkPolicyPeer: give one or more of ipBlock, name",
        ),
        ({"scrape_from": ({},)}, "is not a NetworkPolicyPeer"),
        ({"health_port": 65536}, "health_port is 65536"),
        ({"resync_seconds": 0.5}, "resync_seconds is 0.5"),
    ],
)
def test_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(GOOD, **change)


def test_allowed() -> None:
    assert replace(GOOD, namespaces=(), all_namespaces=True, lease_name="v4serve.dev", lease_namespace="system")
    assert replace(GOOD, common_labels={"example.org/team": "", "team": "A.b_c-1"}, health_port=0)
