"""Parses a V4Deployment, as the API server returns it, into its records. Pure.

`parse` applies the schema's defaults itself, because an object may have been stored before a field was added to the
schema. It raises SpecError for a value that a record cannot hold. Rules that span several fields are in
`v4_operator.spec.check`.
"""

from typing import get_args

from v4_core.errors import V4Error
from v4_core.formats import INDEX_FORMATS, STORAGE_FORMATS
from v4_core.kubernetes import Json
from v4_core.profiles import PROFILES
from v4_operator.spec.accelerators import ACCELERATORS
from v4_operator.spec.fields import FieldError, Fields
from v4_operator.spec.v4deployment import (
    Accelerator,
    Cache,
    HuggingFace,
    Model,
    Parallel,
    Placement,
    PodOverrides,
    Pool,
    Rollout,
    Router,
    Source,
    Spec,
    Transfer,
    Transport,
    V4Deployment,
)


class SpecError(V4Error):
    """A V4Deployment has a value that its record cannot hold. `reason` is the reason of the resulting condition."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


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
