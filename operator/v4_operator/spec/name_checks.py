"""Checks that the names, paths and references in a spec are valid in Kubernetes. Pure."""

from collections.abc import Iterator

from v4_operator.spec.fields import quantity
from v4_operator.spec.problem import INVALID_SPEC, Problem
from v4_operator.spec.syntax import ABSOLUTE_PATH, GIT_REVISION, IMAGE, KEY, RELATIVE_PATH, REPOSITORY, SUBDOMAIN, Rule
from v4_operator.spec.v4deployment import HuggingFace, Model, PodOverrides, Spec

_Named = Iterator[tuple[str, str, Rule]]  # field, its value, the rule for it


def name_problems(spec: Spec) -> Iterator[Problem]:
    """Yields a problem for each name of the spec that breaks its rule."""
    given = ((field, text, rule) for field, text, rule in _names(spec) if text)
    for field, text, rule in (*given, *_keys(spec)):
        if not rule.takes(text):
            yield _invalid(field, f"{field} is {text[:80]!r}; {rule.hint}")
    fetched = spec.model.hugging_face
    if fetched and not quantity(fetched.size):
        yield _invalid("model.huggingFace.size", f"model.huggingFace.size is {fetched.size}; make it more than 0")


def _names(spec: Spec) -> _Named:
    yield "image", spec.image, IMAGE
    yield "router.image", spec.router.image, IMAGE
    yield "router.apiKeysSecret", spec.router.api_keys_secret, SUBDOMAIN
    yield from _of_model(spec.model)
    for field, pod in _pods(spec):
        yield from _of_pod(field, pod)


def _keys(spec: Spec) -> _Named:
    """Keys of labels and annotations. The API server accepts capitals in the domains of annotation keys only."""
    yield from (("router.service.annotations", key.lower(), KEY) for key in spec.router.service_annotations)
    for field, pod in _pods(spec):
        yield from ((f"{field}.annotations", key.lower(), KEY) for key in pod.annotations)
        yield from ((f"{field}.labels", key, KEY) for key in pod.labels)
        yield from ((f"{field}.nodeSelector", key, KEY) for key in pod.node_selector)


def _pods(spec: Spec) -> tuple[tuple[str, PodOverrides], ...]:
    return ("prefill.pod", spec.prefill.pod), ("decode.pod", spec.decode.pod), ("router.pod", spec.router.pod)


def _of_model(model: Model) -> _Named:
    if model.source == "pvc":
        yield "model.pvc.claimName", model.location, SUBDOMAIN
    elif model.source == "hostPath":
        yield "model.hostPath.path", model.location, ABSOLUTE_PATH
    elif model.source == "image":
        yield "model.image.reference", model.location, IMAGE
    yield f"model.{model.source}.path", model.path, RELATIVE_PATH
    if model.hugging_face:
        yield from _of_hugging_face(model.hugging_face)


def _of_hugging_face(fetched: HuggingFace) -> _Named:
    yield "model.huggingFace.repository", fetched.repository, REPOSITORY
    yield "model.huggingFace.revision", fetched.revision, GIT_REVISION
    yield "model.huggingFace.tokenSecret", fetched.token_secret, SUBDOMAIN
    yield "model.huggingFace.claim", fetched.claim, SUBDOMAIN
    yield "model.huggingFace.storageClass", fetched.storage_class, SUBDOMAIN


def _of_pod(field: str, pod: PodOverrides) -> _Named:
    yield f"{field}.priorityClassName", pod.priority_class, SUBDOMAIN
    yield f"{field}.runtimeClassName", pod.runtime_class, SUBDOMAIN
    yield f"{field}.serviceAccountName", pod.service_account, SUBDOMAIN
    for name in pod.pull_secrets:
        yield f"{field}.imagePullSecrets", name, SUBDOMAIN


def _invalid(field: str, message: str) -> Problem:
    return Problem(INVALID_SPEC, message, field)
