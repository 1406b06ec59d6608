"""A V4Deployment as frozen records, from the object that the API server returns. Pure.

`parse` fills in the schema's defaults itself, since an object may be older than a field of the schema. It raises
SpecError for what no record can hold; what several fields mean together is checked by `v4_operator.check`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = Mapping[str, Any]  # a piece of a manifest, as it is written

CPU = "cpu"  # the accelerator type of a pool that has none


@dataclass(frozen=True)
class HuggingFace:
    """A repository that a Job downloads into a claim which nobody but the user deletes."""

    repository: str  # owner/name
    revision: str = "main"  # branch, tag or commit
    token_secret: str = ""  # Secret with entry `token`; empty = public
    claim: str = ""  # PersistentVolumeClaim to use; empty = one is made, named by repository and revision
    size: str = "1Ti"  # of a claim that is made
    storage_class: str = ""  # of a claim that is made; empty = the cluster's default
    access_mode: str = "ReadWriteMany"  # of a claim that is made


@dataclass(frozen=True)
class Model:
    """Where the checkpoint comes from, exactly one source, and what it is served as."""

    source: Literal["demo", "pvc", "hostPath", "image", "huggingFace"] = "demo"
    location: str = ""  # claim name, host path or image reference
    path: str = ""  # folder of the checkpoint within the claim or image
    hugging_face: HuggingFace | None = None
    profile: str = ""  # demo | flash | pro; empty = unknown, nothing is checked against it
    served_name: str = ""  # what clients send as `model`
    revision: str = ""  # any text: a change makes new workers
    context_length: int = 0  # tokens of prompt and output; 0 = what model and memory allow


@dataclass(frozen=True)
class Cache:
    """Storage of entries and states on every worker."""

    format: str = "auto"  # auto | bf16 | fp32 | fp64 | fp8
    index_format: str = "auto"  # the same, or fp4
    memory_percent: int = 50  # of the container's memory request, or of an accelerator's memory
    slots: int = 0  # block slots instead of a share of memory; 0 = by memory_percent
    max_sequences: int = 16  # live tails
    checkpoint_every: int = 0  # blocks; 0 = where prompts end or leave a chain


@dataclass(frozen=True)
class Accelerator:
    """What one worker computes on."""

    type: str = CPU
    count: int = 0  # devices of one worker
    memory_bytes: int = 0  # of one device; 0 = as the type is known to have


@dataclass(frozen=True)
class Parallel:
    """Sizes of one worker; their product is its number of devices."""

    tensor: int = 1
    data: int = 1


@dataclass(frozen=True)
class PodOverrides:
    """What users add to a pod template; nothing here overrides what the operator itself sets."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: Sequence[Json] = ()
    affinity: Json = field(default_factory=dict)
    topology_spread: Sequence[Json] = ()
    env: Sequence[Json] = ()
    volumes: Sequence[Json] = ()
    volume_mounts: Sequence[Json] = ()
    priority_class: str = ""
    runtime_class: str = ""
    service_account: str = ""
    pull_secrets: Sequence[str] = ()


@dataclass(frozen=True)
class Pool:
    """Prefill or decode workers."""

    replicas: int = 1
    resources: Json = field(default_factory=dict)  # requests and limits of one worker's container
    accelerator: Accelerator = field(default_factory=Accelerator)
    parallel: Parallel = field(default_factory=Parallel)
    pod: PodOverrides = field(default_factory=PodOverrides)


@dataclass(frozen=True)
class Router:
    """The front door."""

    replicas: int = 1
    image: str = ""  # empty = the operator's default when the router was first made
    resources: Json = field(default_factory=dict)
    pod: PodOverrides = field(default_factory=PodOverrides)
    service_type: str = "ClusterIP"
    service_port: int = 80
    service_annotations: Mapping[str, str] = field(default_factory=dict)
    request_timeout_seconds: int = 3600
    max_requests: int = 0  # at once in one router; 0 = as many as the workers take
    without_prefill: Literal["serve", "refuse"] = "serve"  # when no prefill worker is left: decode computes prompts too
    auth: Literal["keys", "none"] = "keys"
    api_keys_secret: str = ""  # the user's own; empty = NAME-api-key is made


@dataclass(frozen=True)
class Transfer:
    """How caches go from prefill to decode."""

    transport: Literal["auto", "grpc", "shared-memory", "nvlink", "nixl"] = "auto"
    lease_seconds: int = 30
    pull_timeout_seconds: int = 30
    on_failure: Literal["recompute", "fail"] = "recompute"


@dataclass(frozen=True)
class Rollout:
    """How a new revision takes over."""

    strategy: Literal["Surge", "Replace"] = "Surge"
    drain_seconds: int = 300  # that a leaving worker may go on with its streams
    progress_deadline_seconds: int = 1800


@dataclass(frozen=True)
class Spec:
    """`spec` of a V4Deployment."""

    image: str = ""  # of workers; empty = the operator's default when the pools were first made
    model: Model = field(default_factory=Model)
    cache: Cache = field(default_factory=Cache)
    prefill: Pool = field(default_factory=Pool)
    decode: Pool = field(default_factory=Pool)
    placement: Literal["separate", "shared"] = "separate"
    router: Router = field(default_factory=Router)
    transfer: Transfer = field(default_factory=Transfer)
    rollout: Rollout = field(default_factory=Rollout)
    scrape_from: Sequence[Json] = ()  # NetworkPolicyPeers that may read the monitoring ports


@dataclass(frozen=True)
class V4Deployment:
    """One custom resource."""

    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool  # deletionTimestamp is set: nothing may be created any more
    spec: Spec
    labels: Mapping[str, str] = field(default_factory=dict)
