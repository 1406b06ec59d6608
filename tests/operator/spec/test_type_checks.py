"""Types of what is handed on to Kubernetes: what it takes is not refused, what it refuses is found."""

from typing import Any

import pytest
import yaml

from tests.operator.wrong import manifest
from v4_operator.spec.parse import parse
from v4_operator.spec.type_checks import type_problems

RIGHT = """
tolerations: [{key: a, operator: Exists, effect: NoSchedule, tolerationSeconds: 5}, {operator: Exists}]
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms: [{matchExpressions: [{key: a, operator: In, values: ["1"]}]}]
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
    - {weight: 1, podAffinityTerm: {topologyKey: z, labelSelector: {matchLabels: {requests: many, divisor: x}}}}
topologySpreadConstraints: [{maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule}]
env:
- {name: A, value: "true"}
- {name: B, valueFrom: {secretKeyRef: {name: s, key: k, optional: true}}}
- {name: C, valueFrom: {resourceFieldRef: {resource: limits.cpu, divisor: 1}}}
- {name: D, value: null}
volumes:
- {name: a, emptyDir: {medium: Memory, sizeLimit: 1073741824}}
- {name: b, emptyDir: {sizeLimit: 1Gi}}
- {name: c, secret: {secretName: s, defaultMode: 420, items: [{key: k, path: p}]}}
- {name: d, csi: {driver: d, volumeAttributes: {a: "1"}}}
- name: e
  ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}}
- {name: f, aKindOfTomorrow: {size: 1}}
volumeMounts: [{name: a, mountPath: /a, readOnly: true}]
"""


def found(spec: dict[str, Any]) -> list[tuple[str, str]]:
    """Fields and messages."""
    return [(problem.field, problem.message) for problem in type_problems(parse(manifest(spec)).spec)]


def test_what_kubernetes_takes_is_not_refused() -> None:
    pod = yaml.safe_load(RIGHT)
    peer = {"namespaceSelector": {}, "podSelector": {"matchExpressions": [{"key": "a", "operator": "Exists"}]}}
    parts: dict[str, Any] = {part: {"pod": pod} for part in ("prefill", "decode", "router")}
    assert found({**parts, "networkPolicy": {"scrapeFrom": [peer, {"ipBlock": {"cidr": "10.0.0.0/8"}}]}}) == []


@pytest.mark.parametrize("part", ["prefill", "decode", "router"])
@pytest.mark.parametrize(
    ("pod", "field", "says"),
    [
        ("env: [{name: A}, {name: X, value: true}]", "env[1].value", "must be text, not True; write it in quotes"),
        ("env: [{name: X, value: 1.5}]", "env[0].value", "must be text, not 1.5; write it in quotes"),
        ("env: [{name: X, value: [a]}]", "env[0].value", "must be text, not ['a']"),
        ("env: [{name: X, valueFrom: s}]", "env[0].valueFrom", "must be an object, not 's'"),
        (
            "env: [{name: X, valueFrom: {secretKeyRef: {name: s, key: k, optional: 'yes'}}}]",
            "env[0].valueFrom.secretKeyRef.optional",
            "must be true or false, not 'yes'",
        ),
        ("volumes: [{name: 5}]", "volumes[0].name", "must be text, not 5; write it in quotes"),
        ("volumes: [{name: v, secret: {defaultMode: '0644'}}]", "volumes[0].secret.defaultMode", "whole number"),
        ("volumes: [{name: v, projected: {sources: {}}}]", "volumes[0].projected.sources", "must be a list, not {}"),
        (
            "volumes: [{name: v, csi: {volumeAttributes: {a: 1}}}]",
            "volumes[0].csi.volumeAttributes.a",
            "must be text, not 1; write it in quotes",
        ),
        (
            "volumes: [{name: v, ephemeral: {volumeClaimTemplate: {spec: {resources: {requests: {storage: x}}}}}}]",
            "volumes[0].ephemeral.volumeClaimTemplate.spec.resources.requests.storage",
            "is 'x'; write a number, alone or with a unit",
        ),
        ("volumeMounts: [{name: v, mountPath: /v, readOnly: 1}]", "volumeMounts[0].readOnly", "true or false"),
        ("tolerations: [{key: true}]", "tolerations[0].key", "must be text"),
        ("affinity: {nodeAffinity: []}", "affinity.nodeAffinity", "must be an object, not []"),
        (
            "topologySpreadConstraints: [{maxSkew: one, topologyKey: z, whenUnsatisfiable: DoNotSchedule}]",
            "topologySpreadConstraints[0].maxSkew",
            "must be a whole number, not 'one'",
        ),
    ],
)
def test_another_type_is_found_and_named(part: str, pod: str, field: str, says: str) -> None:
    ((where, message),) = found({part: {"pod": yaml.safe_load(pod)}})
    assert where == f"{part}.pod.{field}"
    assert message.startswith(f"{where} ")
    assert says in message
