"""Manifests that must be refused or reported, with a message that tells users what to do."""

from dataclasses import dataclass, field
from typing import Any

import yaml

OLD, NEW = (1, 20), (1, 36)


@dataclass(frozen=True)
class Wrong:
    """One mistake. `refused` names what finds it on a current server: the schema, its rules, or the operator."""

    name: str
    spec: str  # YAML that is merged into a valid spec
    says: str  # pattern of the message
    refused: str = "rule"  # schema | rule | operator
    reason: str = "InvalidSpec"
    metadata: dict[str, Any] = field(default_factory=dict)
    server: tuple[int, int] = NEW

    def manifest(self) -> dict[str, Any]:
        """The V4Deployment with the mistake."""
        return manifest(yaml.safe_load(self.spec) or {}, **self.metadata)


def manifest(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    """A V4Deployment; of the demo model if `spec` names none."""
    return {
        "apiVersion": "v4serve.dev/v1alpha1",
        "kind": "V4Deployment",
        "metadata": {"name": "chat", "namespace": "default", **metadata},
        "spec": {"model": {"demo": {}}, **spec},
    }


_GPUS = """
model: {pvc: {claimName: weights}, profile: flash}
prefill: {accelerator: {type: h200, count: 4}, parallel: {tensor: 4}}
decode: {accelerator: {type: h200, count: 4}, parallel: {tensor: 4}}
"""

WRONG = [
    Wrong("no source", "model: {profile: demo}", "model needs exactly one source"),
    Wrong("two sources", "model: {demo: {}, hostPath: {path: /m}}", "model needs exactly one source"),
    Wrong("demo of another shape", "model: {demo: {}, profile: flash}", "model.profile.* demo"),
    Wrong("context beyond the model", "model: {demo: {}, contextLength: 9000}", "model.contextLength.*8192"),
    Wrong("unknown profile", "model: {demo: {}, profile: ultra}", "model.profile.*ultra", "schema"),
    Wrong("cache sized twice", "cache: {slots: 100, memoryPercent: 50}", "cache.slots and cache.memoryPercent"),
    Wrong(
        "slots of an unknown model", "{model: {hostPath: {path: /m}}, cache: {slots: 99}}", "cache.slots needs model"
    ),
    Wrong("devices of a CPU", "decode: {accelerator: {count: 2}, parallel: {tensor: 2}}", "decode.accelerator.count"),
    Wrong("GPU type without count", "prefill: {accelerator: {type: h200}}", "prefill.accelerator.count"),
    Wrong("unknown GPU type", "decode: {accelerator: {type: h900, count: 1}}", "decode.accelerator.type", "schema"),
    Wrong(
        "places for other devices", "prefill: {accelerator: {type: h200, count: 8}}", "prefill.parallel.*product|times"
    ),
    Wrong(
        "heads that do not divide",
        "{model: {pvc: {claimName: w}, profile: flash},"
        " decode: {accelerator: {type: b200, count: 16}, parallel: {tensor: 16}}}",
        "decode.parallel.tensor.*divi",
    ),
    Wrong(
        "experts that do not divide",
        "{model: {pvc: {claimName: w}, profile: flash},"
        " prefill: {accelerator: {type: b200, count: 6}, parallel: {tensor: 2, data: 3}}}",
        "prefill.parallel.*experts",
    ),
    Wrong("fp8 on a CPU", "cache: {format: fp8}", "cache.format.*fp8"),
    Wrong(
        "fp8 on one A100 pool",
        "{cache: {format: fp8}, prefill: {accelerator: {type: h200, count: 1}},"
        " decode: {accelerator: {type: a100-80gb, count: 1}}}",
        "cache.format.*a100-80gb",
    ),
    Wrong("fp4 before Blackwell", f"{_GPUS}\ncache: {{indexFormat: fp4}}", "cache.indexFormat"),
    Wrong("shared and unequal", "{placement: shared, decode: {replicas: 3}}", "prefill.replicas .*decode.replicas"),
    Wrong(
        "shared on two kinds of nodes",
        "{placement: shared, decode: {accelerator: {type: l4, count: 1}}}",
        "prefill.accelerator.type .*decode.accelerator.type",
    ),
    Wrong("shared memory between pods", "transfer: {transport: shared-memory}", "transport.*placement"),
    Wrong("NVLink without NVLink", "{placement: shared, transfer: {transport: nvlink}}", "transport.*nvlink.*cpu"),
    Wrong(
        "drain longer than progress",
        "rollout: {strategy: Replace, drainSeconds: 900, progressDeadlineSeconds: 600}",
        "progressDeadlineSeconds.*drainSeconds",
    ),
    Wrong("keys nobody asks for", "router: {auth: none, apiKeysSecret: keys}", "router.apiKeysSecret"),
    Wrong("long name", "{}", "metadata.name.*40", reason="InvalidName", metadata={"name": "a" * 41}),
    Wrong("name of no Service", "{}", "metadata.name.*letter", reason="InvalidName", metadata={"name": "4chat"}),
    Wrong(
        "no quantity",
        "prefill: {resources: {requests: {memory: 2 gigs}}}",
        "memory.*2 gigs|memory.*should match",
        "schema",
    ),
    Wrong("words for a number", "decode: {replicas: many}", "decode.replicas", "schema"),
    Wrong(
        "request beyond limit",
        "prefill: {resources: {requests: {memory: 4Gi}, limits: {memory: 3Gi}}}",
        "greater than limits.memory",
        "operator",
    ),
    Wrong(
        "GPUs as resources",
        "decode: {resources: {limits: {nvidia.com/gpu: 1}}}",
        "nvidia.com/gpu .*accelerator.count",
        "operator",
        "Reserved",
    ),
    Wrong(
        "environment of the operator",
        "decode: {pod: {env: [{name: V4SERVE_COMPILED, value: /x}]}}",
        "V4SERVE_COMPILED is set by the operator",
        "operator",
        "Reserved",
    ),
    Wrong(
        "label of the operator", "prefill: {pod: {labels: {v4serve.dev/role: x}}}", "role.*key", "operator", "Reserved"
    ),
    Wrong("label of spaces", "router: {pod: {labels: {team: a b}}}", "at most 63 letters", "schema"),
    Wrong(
        "claim of no name", "model: {pvc: {claimName: My_Claim}}", "model.pvc.claimName is 'My_Claim'; use", "schema"
    ),
    Wrong(
        "path upwards", "model: {pvc: {claimName: w, path: ../../etc}}", "model.*'[.][.]'.*folder below|relative path"
    ),
    Wrong("path upwards, inside", "model: {image: {reference: 'w:1', path: a/../../b}}", "folder below|relative path"),
    Wrong("path upwards, at last", "model: {hostPath: {path: /models/..}}", "'[.][.]'"),
    Wrong("path from the top", "model: {pvc: {claimName: w, path: /etc}}", "model.pvc.path is '/etc'", "schema"),
    Wrong("Secret of no name", "router: {apiKeysSecret: My Secret}", "router.apiKeysSecret is 'My Secret'", "schema"),
    Wrong(
        "names of a fetched model",
        "model: {huggingFace: {repository: a/b, tokenSecret: A, claim: b_c, storageClass: d/e}}",
        "model.huggingFace.(tokenSecret|claim|storageClass) is '(A|b_c|d/e)'",
        "schema",
    ),
    Wrong("claim of no size", "model: {huggingFace: {repository: a/b, size: 0}}", "more than 0", "operator"),
    Wrong(
        "revision upwards",
        "model: {huggingFace: {repository: a/b, revision: ..}}",
        "revision is '..'; write",
        "operator",
    ),
    Wrong("image with a scheme", "image: 'https://example.com/v4serve:1'", "^image is .*without a scheme", "operator"),
    Wrong("image of spaces", "router: {image: my router}", "router.image is 'my router'", "operator"),
    Wrong(
        "image in capitals", "model: {image: {reference: Weights}}", "model.image.reference is 'Weights'", "operator"
    ),
    Wrong(
        "names of a pod",
        "decode: {pod: {priorityClassName: Top, runtimeClassName: a b, serviceAccountName: x_y}}",
        "decode.pod.(priorityClassName|runtimeClassName|serviceAccountName) is '(Top|a b|x_y)'",
        "schema",
    ),
    Wrong(
        "pull secret of no name", "router: {pod: {imagePullSecrets: [{name: a_b}]}}", "imagePullSecrets is", "schema"
    ),
    Wrong("key of an annotation", "router: {service: {annotations: {a b: c}}}", "annotations is 'a b'", "operator"),
    Wrong("key of a label", "decode: {pod: {nodeSelector: {-a: c}}}", "decode.pod.nodeSelector is '-a'", "operator"),
    Wrong(
        "unknown resource",
        "decode: {resources: {requests: {cpus: 1}}}",
        "requests names the resource 'cpus'",
        "operator",
    ),
    Wrong("true for text", "prefill: {pod: {env: [{name: X, value: true}]}}", "env.0..value.*text, not True", "schema"),
    Wrong(
        "a variable twice",
        "decode: {pod: {env: [{name: X, value: a}, {name: X, value: b}]}}",
        "env has 2 items with name X",
        "schema",
    ),
    Wrong("variable with =", "decode: {pod: {env: [{name: A=B, value: c}]}}", "the variable 'A=B'", "schema"),
    Wrong("a volume twice", "router: {pod: {volumes: [{name: v}, {name: v}]}}", "volumes has 2 items", "schema"),
    Wrong("volume of no name", "router: {pod: {volumes: [{name: My_Volume}]}}", "called 'My_Volume'", "schema"),
    Wrong(
        "two mounts at one place",
        "router: {pod: {volumes: [{name: v}], volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /v}]}}",
        "volumeMounts has 2 items with mountPath /v",
        "schema",
    ),
    Wrong(
        "mount upwards",
        "router: {pod: {volumes: [{name: v}], volumeMounts: [{name: v, mountPath: /v, subPath: ../x}]}}",
        "subPath '../x'",
        "operator",
    ),
    Wrong(
        "one spread twice",
        "decode: {pod: {topologySpreadConstraints: [&a {maxSkew: 1, topologyKey: z, whenUnsatisfiable: DoNotSchedule},"
        " *a]}}",
        "2 items with topologyKey z and whenUnsatisfiable DoNotSchedule",
        "schema",
    ),
    Wrong(
        "spread over nothing",
        "decode: {pod: {topologySpreadConstraints: [{maxSkew: 1, whenUnsatisfiable: DoNotSchedule}]}}",
        "item without topologyKey",
        "schema",
    ),
    Wrong(
        "text for seconds",
        "decode: {pod: {tolerations: [{key: a, tolerationSeconds: '5'}]}}",
        "tolerations.0..tolerationSeconds must be a whole number, not '5'",
        "operator",
    ),
    Wrong(
        "text for an object",
        "decode: {pod: {volumes: [{name: v, hostPath: /x}]}}",
        "volumes.0..hostPath must be an object, not '/x'",
        "operator",
    ),
    Wrong(
        "size of no volume",
        "decode: {pod: {volumes: [{name: v, emptyDir: {sizeLimit: 1 gig}}]}}",
        "emptyDir.sizeLimit is '1 gig'; write a number",
        "operator",
    ),
    Wrong(
        "object for a list",
        "prefill: {pod: {affinity: {podAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {}}}}}",
        "requiredDuringSchedulingIgnoredDuringExecution must be a list",
        "operator",
    ),
    Wrong(
        "label of a number",
        "networkPolicy: {scrapeFrom: [{podSelector: {matchLabels: {a: 1}}}]}",
        "scrapeFrom.0..podSelector.matchLabels.a must be text, not 1; write it in quotes",
        "operator",
    ),
    Wrong(
        "volume of the operator",
        "decode: {pod: {volumes: [{name: model, emptyDir: {}}]}}",
        "called model",
        "operator",
        "Reserved",
    ),
    Wrong(
        "mount over the model",
        "decode: {pod: {volumes: [{name: own}], volumeMounts: [{name: own, mountPath: /model/x}]}}",
        "/model/x",
        "operator",
        "Reserved",
    ),
    Wrong("mount of nothing", "decode: {pod: {volumeMounts: [{name: own, mountPath: /x}]}}", "own.*add it", "operator"),
    Wrong(
        "shared pods of two priorities",
        "{placement: shared, decode: {pod: {priorityClassName: high}}}",
        "decode.pod.priorityClassName has no effect .*move it to prefill.pod.priorityClassName",
        "operator",
    ),
    Wrong(
        "shared pods with two volumes of one name",
        "{placement: shared, prefill: {pod: {volumes: [{name: own, emptyDir: {}}]}},"
        " decode: {pod: {volumes: [{name: own, hostPath: {path: /x}}]}}}",
        "define the volume own differently",
        "operator",
    ),
    Wrong(
        "container too small",
        "{model: {demo: {}, contextLength: 8192}, decode: {resources: {requests: {memory: 24Mi}}}}",
        r"decode: a container with 24 MiB.*at least \d+Mi",
        "operator",
        "DoesNotFit",
    ),
    Wrong(
        "too few slots",
        "{cache: {slots: 2}}",
        "any sequence needs 5, of which 3 are for a checkpoint",
        "operator",
        "DoesNotFit",
    ),
    Wrong(
        "weights beyond the GPU",
        "{model: {pvc: {claimName: w}, profile: flash}, prefill: {accelerator: {type: h200, count: 1}},"
        " decode: {accelerator: {type: h200, count: 4}, parallel: {tensor: 4}}}",
        "prefill: 1 h200 .*cannot hold the weights of flash.* 4 of them are enough",
        "operator",
        "DoesNotFit",
    ),
    Wrong(
        "context beyond the GPU",
        "{model: {pvc: {claimName: w}, profile: pro, contextLength: 1048576},"
        " cache: {memoryPercent: 5}, prefill: {accelerator: {type: b200, count: 16}, parallel: {tensor: 16}},"
        " decode: {accelerator: {type: b200, count: 16}, parallel: {tensor: 16}}}",
        "prefill: cache.memoryPercent 5 of a b200.*raise cache.memoryPercent",
        "operator",
        "DoesNotFit",
    ),
    Wrong(
        "image volume on an old server",
        "model: {image: {reference: weights:1}}",
        "needs Kubernetes 1.33, and this API server is 1.20",
        "operator",
        "ServerLacks",
        server=OLD,
    ),
    Wrong("GPUs", _GPUS, "computes only on CPUs, not on h200", "operator", "EngineLacks"),
    Wrong(
        "quantised weights", "model: {pvc: {claimName: w}, profile: pro}", "weights of pro", "operator", "EngineLacks"
    ),
    Wrong("fp8 cache", f"{_GPUS}\ncache: {{format: fp8}}", "does not support fp8 storage", "operator", "EngineLacks"),
    Wrong("NIXL", "transfer: {transport: nixl}", "does not support the transport nixl", "operator", "EngineLacks"),
    Wrong("two CPUs in parallel", "decode: {parallel: {tensor: 2}}", "on a single device", "operator", "EngineLacks"),
]
