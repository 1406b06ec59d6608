"""Parses a V4Deployment, as the API server returns it, into frozen records. Pure.

`parse` applies the schema's defaults itself, because an object may have been stored before a field was added to the
schema. It raises SpecError for a value that a record cannot hold. Rules that span several fields are in
`v4_operator.spec.check`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from v4_core.errors import V4Error
from v4_core.formats import INDEX_FORMATS, STORAGE_FORMATS
from v4_core.kubernetes import Json
from v4_core.profiles import PROFILES
from v4_operator.spec.accelerators import ACCELERATORS, CPU
from v4_operator.spec.fields import FieldError, Fields

Placement = Literal["separate", "shared"]
Source = Literal["demo", "pvc", "hostPath", "image", "huggingFace"]
Transport = Literal["auto", "grpc", "shared-memory", "nvlink", "nixl"]


class SpecError(V4Error):
    """A V4Deployment has a value that its record cannot hold. `reason` is the reason of the resulting condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


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


def parse(obj: Json) -> V4Deployment:
    """Parses a V4Deployment as the API server returns it. Raises SpecError if a value does not fit its field."""
    try:
        metadata = Fields("metadata", Fields("", obj).mapping("metadata"))
        return V4Deployment(
            name=metadata.text("name"),
            namespace=metadata.text("namespace"),
            uid=metadata.text("uid"),
            generation=metadata.whole("generation", 0, most=2**63 - 1),
            deleting="deletionTimestamp" in metadata,
            spec=_spec(Fields("", Fields("", obj).mapping("spec"))),
            written=Fields("", obj).mapping("spec"),
        )
    except FieldError as error:
        raise SpecError("InvalidSpec", str(error)) from None


def _spec(spec: Fields) -> Spec:
    return Spec(
        image=spec.text("image"),
        model=_model(spec.group("model")),
        cache=_cache(spec.group("cache")),
        prefill=_pool(spec.group("prefill")),
        decode=_pool(spec.group("decode")),
        placement=spec.choice("placement", get_args(Placement), Spec.placement),
        router=_router(spec.group("router")),
        transfer=_transfer(spec.group("transfer")),
        rollout=_rollout(spec.group("rollout")),
        scrape_from=spec.group("networkPolicy").objects("scrapeFrom"),
    )


def _model(model: Fields) -> Model:
    given: list[Source] = [source for source in get_args(Source) if source in model]
    if len(given) != 1:
        found = f"it has {' and '.join(given)}" if given else "it has none"
        raise SpecError("InvalidSpec", f"model needs exactly one source of {', '.join(get_args(Source))}; {found}")
    source, group = given[0], model.group(given[0])
    location = {"pvc": "claimName", "hostPath": "path", "image": "reference"}.get(source)
    return Model(
        source=source,
        location=group.text(location) if location else "",
        path=group.text("path") if source in ("pvc", "image") else "",
        hugging_face=_hugging_face(group) if source == "huggingFace" else None,
        profile=model.choice("profile", ("", *PROFILES), "demo" if source == "demo" else ""),
        served_name=model.text("servedName"),
        revision=model.text("revision"),
        context_length=model.whole("contextLength", 0),
    )


def _hugging_face(group: Fields) -> HuggingFace:
    return HuggingFace(
        repository=group.text("repository"),
        revision=group.text("revision", HuggingFace.revision),
        token_secret=group.text("tokenSecret"),
        claim=group.text("claim"),
        size=group.quantity_text("size", HuggingFace.size),
        storage_class=group.text("storageClass"),
        access_mode=group.text("accessMode", HuggingFace.access_mode),
    )


def _cache(cache: Fields) -> Cache:
    if "slots" in cache and "memoryPercent" in cache:
        raise SpecError("InvalidSpec", "cache.slots and cache.memoryPercent both size the cache; give one of them")
    return Cache(
        format=cache.choice("format", ("auto", *STORAGE_FORMATS), Cache.format),
        index_format=cache.choice("indexFormat", ("auto", *INDEX_FORMATS), Cache.index_format),
        memory_percent=cache.whole("memoryPercent", Cache.memory_percent, least=1, most=95),
        slots=cache.whole("slots", 0),
        max_sequences=cache.whole("maxSequences", Cache.max_sequences, least=1),
        checkpoint_every=cache.whole("checkpointEvery", Cache.checkpoint_every),
    )


def _pool(pool: Fields) -> Pool:
    accelerator, parallel = pool.group("accelerator"), pool.group("parallel")
    return Pool(
        replicas=pool.whole("replicas", Pool.replicas),
        resources=pool.mapping("resources"),
        accelerator=Accelerator(
            type=accelerator.choice("type", tuple(ACCELERATORS), Accelerator.type),
            count=accelerator.whole("count", Accelerator.count),
            memory_bytes=accelerator.quantity("memory"),
        ),
        parallel=Parallel(
            tensor=parallel.whole("tensor", Parallel.tensor, least=1),
            data=parallel.whole("data", Parallel.data, least=1),
        ),
        pod=_pod(pool.group("pod")),
    )


def _pod(pod: Fields) -> PodOverrides:
    return PodOverrides(
        labels=pod.texts("labels"),
        annotations=pod.texts("annotations"),
        node_selector=pod.texts("nodeSelector"),
        tolerations=pod.objects("tolerations"),
        affinity=pod.mapping("affinity"),
        topology_spread=pod.objects("topologySpreadConstraints"),
        env=pod.objects("env"),
        volumes=pod.objects("volumes"),
        volume_mounts=pod.objects("volumeMounts"),
        priority_class=pod.text("priorityClassName"),
        runtime_class=pod.text("runtimeClassName"),
        service_account=pod.text("serviceAccountName"),
        pull_secrets=tuple(secret.text("name") for secret in pod.items("imagePullSecrets")),
    )


def _router(router: Fields) -> Router:
    service, limits = router.group("service"), router.group("limits")
    return Router(
        replicas=router.whole("replicas", Router.replicas),
        image=router.text("image"),
        resources=router.mapping("resources"),
        pod=_pod(router.group("pod")),
        service_type=service.choice("type", ("ClusterIP", "NodePort", "LoadBalancer"), Router.service_type),
        service_port=service.whole("port", Router.service_port, least=1),
        service_annotations=service.texts("annotations"),
        request_timeout_seconds=limits.whole("requestTimeoutSeconds", Router.request_timeout_seconds, least=1),
        max_requests=limits.whole("maxRequests", Router.max_requests),
        without_prefill=router.group("policy").choice("withoutPrefill", ("serve", "refuse"), Router.without_prefill),
        auth=router.choice("auth", ("keys", "none"), Router.auth),
        api_keys_secret=router.text("apiKeysSecret"),
        log_prompts=router.flag("logPrompts"),
        key_overlap_seconds=router.whole("keyOverlapSeconds", 0) if "keyOverlapSeconds" in router else None,
    )


def _transfer(transfer: Fields) -> Transfer:
    return Transfer(
        transport=transfer.choice("transport", get_args(Transport), Transfer.transport),
        lease_seconds=transfer.whole("leaseSeconds", Transfer.lease_seconds, least=1),
        pull_timeout_seconds=transfer.whole("pullTimeoutSeconds", Transfer.pull_timeout_seconds, least=1),
        on_failure=transfer.choice("onFailure", ("recompute", "fail"), Transfer.on_failure),
    )


def _rollout(rollout: Fields) -> Rollout:
    return Rollout(
        strategy=rollout.choice("strategy", ("Surge", "Replace"), Rollout.strategy),
        drain_seconds=rollout.whole("drainSeconds", Rollout.drain_seconds),
        progress_deadline_seconds=rollout.whole("progressDeadlineSeconds", Rollout.progress_deadline_seconds, least=1),
    )
