"""The records of a V4Deployment: what users may specify, with the defaults of the CRD's schema. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from v4_core.kubernetes import Json
from v4_operator.spec.accelerators import CPU

Placement = Literal["separate", "shared"]
Source = Literal["demo", "pvc", "hostPath", "image", "huggingFace"]
Transport = Literal["auto", "grpc", "shared-memory", "nvlink", "nixl"]


@dataclass(frozen=True)
class HuggingFace:
    """A Hugging Face repository that a Job downloads into a PersistentVolumeClaim. Only users delete that claim."""

    repository: str  # owner/name
    revision: str = "main"  # branch, tag or commit
    token_secret: str = ""  # name of a Secret with the entry `token`; empty = the repository is public
    claim: str = ""  # an existing PersistentVolumeClaim; empty = one is created, named after repository and revision
    size: str = "1Ti"  # of a created claim
    storage_class: str = ""  # of a created claim; empty = the cluster's default
    access_mode: str = "ReadWriteMany"  # of a created claim


@dataclass(frozen=True)
class Model:
    """The source of the checkpoint (exactly one) and the name under which the model is served."""

    source: Source = "demo"
    location: str = ""  # claim name, host path or image reference
    path: str = ""  # folder of the checkpoint inside the claim or image
    hugging_face: HuggingFace | None = None
    profile: str = ""  # demo | flash | pro; empty = unknown, so that sizes are not checked
    served_name: str = ""  # the value of `model` in clients' requests
    revision: str = ""  # free text; changing it replaces the workers
    context_length: int = 0  # tokens of prompt and output; 0 = as many as model and memory allow


@dataclass(frozen=True)
class Cache:
    """How every worker stores the cache, and how much of it."""

    format: str = "auto"  # auto | bf16 | fp32 | fp64 | fp8
    index_format: str = "auto"  # one of the above, or fp4
    memory_percent: int = 50  # share of the container's memory request, or of an accelerator's memory
    slots: int = 0  # number of block slots, instead of a share of memory; 0 = memory_percent decides
    max_sequences: int = 16  # number of live tails
    checkpoint_every: int = 0  # blocks; 0 = only at the ends of prompts and where prompts diverge


@dataclass(frozen=True)
class Accelerator:
    """The devices that one worker computes on."""

    type: str = CPU
    count: int = 0  # devices per worker
    memory_bytes: int = 0  # per device; 0 = the memory that is known for the type


@dataclass(frozen=True)
class Parallel:
    """Parallel sizes of one worker; their product is its number of devices."""

    tensor: int = 1
    data: int = 1


@dataclass(frozen=True)
class PodOverrides:
    """Users' additions to a pod template. They never override a value that the operator sets."""

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
    """The prefill or the decode workers."""

    replicas: int = 1
    resources: Json = field(default_factory=dict)  # requests and limits of one worker's container
    accelerator: Accelerator = field(default_factory=Accelerator)
    parallel: Parallel = field(default_factory=Parallel)
    pod: PodOverrides = field(default_factory=PodOverrides)


@dataclass(frozen=True)
class Router:
    """The routers, which serve the OpenAI-compatible API."""

    replicas: int = 1
    image: str = ""  # empty = the operator's default at the time when the router was created
    resources: Json = field(default_factory=dict)
    pod: PodOverrides = field(default_factory=PodOverrides)
    service_type: str = "ClusterIP"
    service_port: int = 80
    service_annotations: Mapping[str, str] = field(default_factory=dict)
    request_timeout_seconds: int = 3600
    max_requests: int = 0  # concurrent requests per router; 0 = as many as the workers accept
    without_prefill: Literal["serve", "refuse"] = "serve"  # without prefill workers, decode computes prompts or not
    auth: Literal["keys", "none"] = "keys"
    api_keys_secret: str = ""  # an existing Secret; empty = the operator creates NAME-api-key
    log_prompts: bool = False  # whether the log line of a request contains its prompt
    key_overlap_seconds: int | None = None  # how long a removed API key stays valid; None = the router's default


@dataclass(frozen=True)
class Transfer:
    """How caches are transferred from prefill to decode workers."""

    transport: Transport = "auto"
    lease_seconds: int = 30
    pull_timeout_seconds: int = 30
    on_failure: Literal["recompute", "fail"] = "recompute"


@dataclass(frozen=True)
class Rollout:
    """How a new revision replaces the old one."""

    strategy: Literal["Surge", "Replace"] = "Surge"
    drain_seconds: int = 300  # how long a terminating worker may continue its streams
    progress_deadline_seconds: int = 1800


@dataclass(frozen=True)
class Spec:
    """`spec` of a V4Deployment."""

    image: str = ""  # of workers; empty = the operator's default at the time when the pools were created
    model: Model = field(default_factory=Model)
    cache: Cache = field(default_factory=Cache)
    prefill: Pool = field(default_factory=Pool)
    decode: Pool = field(default_factory=Pool)
    placement: Placement = "separate"
    router: Router = field(default_factory=Router)
    transfer: Transfer = field(default_factory=Transfer)
    rollout: Rollout = field(default_factory=Rollout)
    scrape_from: Sequence[Json] = ()  # NetworkPolicyPeers that may read the monitoring ports


@dataclass(frozen=True)
class V4Deployment:
    """One V4Deployment object."""

    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool  # deletionTimestamp is set, so that no child may be created
    spec: Spec
    written: Json = field(default_factory=dict, compare=False)  # the unparsed spec

    @property
    def served_name(self) -> str:
        """The value of `model` in clients' requests."""
        return self.spec.model.served_name or self.name
