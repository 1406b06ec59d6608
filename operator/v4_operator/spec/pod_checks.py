"""Rejects additions to pods that the operator itself sets or that the API server would refuse later. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from v4_core.kubernetes import GROUP, ROLE_ALIAS_LABEL, Json
from v4_operator.spec.accelerators import ACCELERATORS
from v4_operator.spec.fields import QUANTITY_HINT, quantity
from v4_operator.spec.problem import INVALID_SPEC, RESERVED, Problem
from v4_operator.spec.syntax import KEY, LABEL, LABEL_VALUE, RELATIVE_PATH, STANDARD_RESOURCE, Rule, env_rule
from v4_operator.spec.v4deployment import PodOverrides, Spec

RESERVED_ENV = frozenset({"HF_HOME", "HF_TOKEN", "HOME", "LOGNAME", "NUMBA_CACHE_DIR", "OMP_NUM_THREADS", "PATH"})
RESERVED_ENV_PREFIX = "V4SERVE_"
RESERVED_LABELS = (f"{GROUP}/", "app.kubernetes.io/", ROLE_ALIAS_LABEL)  # prefixes
RESERVED_VOLUMES = frozenset({"api-keys", "model", "policy", "tmp", "token"})
RESERVED_PATHS = ("/etc/v4serve", "/model", "/tmp")

_OF_THE_POD = {
    "labels": "labels",
    "annotations": "annotations",
    "node_selector": "nodeSelector",
    "tolerations": "tolerations",
    "affinity": "affinity",
    "topology_spread": "topologySpreadConstraints",
    "priority_class": "priorityClassName",
    "runtime_class": "runtimeClassName",
    "service_account": "serviceAccountName",
    "pull_secrets": "imagePullSecrets",
}
_DEVICES = frozenset(kind.resource for kind in ACCELERATORS.values() if kind.resource)


def pod_problems(spec: Spec, server: tuple[int, int]) -> Iterator[Problem]:
    """Yields problems of the prefill, decode and router pods. `server` is the API server's version (major, minor).

    Expects values of the types of Kubernetes' API, as `v4_operator.spec.type_checks` ensures.
    """
    parts = (("prefill", spec.prefill), ("decode", spec.decode), ("router", spec.router))
    for name, part in parts:
        yield from _resources(f"{name}.resources", part.resources)
        yield from _env(f"{name}.pod.env", part.pod, env_rule(server))
        yield from _labels(f"{name}.pod", part.pod)
        yield from _volumes(f"{name}.pod", part.pod)
        yield from _spread(f"{name}.pod.topologySpreadConstraints", part.pod)
    if spec.placement == "shared":
        yield from _shared(spec.prefill.pod, spec.decode.pod)


def _reserved(field: str, name: str, instead: str) -> Problem:
    return Problem(RESERVED, f"{field}: {name} is set by the operator; {instead}", field)


def _invalid(field: str, message: str) -> Problem:
    return Problem(INVALID_SPEC, f"{field}{message}", field)


def _resources(field: str, resources: Json) -> Iterator[Problem]:
    amounts = {}
    for kind in ("requests", "limits"):
        given = resources.get(kind) or {}
        if not isinstance(given, Mapping):
            yield _invalid(f"{field}.{kind}", f" must map resources to quantities, not be {given!r}")
            continue
        for name, value in given.items():
            rule = KEY if "/" in name else STANDARD_RESOURCE
            if not rule.takes(name):
                yield _invalid(f"{field}.{kind}", f" names the resource {name[:80]!r}; {rule.hint}")
            amounts[kind, name] = amount = quantity(value)
            if amount is None:
                yield _invalid(f"{field}.{kind}.{name}", f" is {value!r}; {QUANTITY_HINT}")
            if name in _DEVICES:
                yield _reserved(f"{field}.{kind}", name, "give the number of devices as accelerator.count")
    for (kind, name), amount in amounts.items():
        limit = amounts.get(("limits", name))
        if kind == "requests" and amount is not None and limit is not None and amount > limit:
            yield _invalid(
                f"{field}.requests.{name}", f" is greater than limits.{name}; lower the one or raise the other"
            )


def _env(field: str, pod: PodOverrides, rule: Rule) -> Iterator[Problem]:
    yield from _twice(field, pod.env, "name")
    for variable in pod.env:
        name = variable.get("name")
        if not name:
            yield _invalid(field, " has an item without a name; give each variable a name")
        elif not rule.takes(name):
            yield _invalid(field, f" has the variable {name[:80]!r}; {rule.hint}")
        elif name in RESERVED_ENV or name.startswith(RESERVED_ENV_PREFIX):
            yield _reserved(field, name, "remove it, and use the fields of the spec")


def _labels(field: str, pod: PodOverrides) -> Iterator[Problem]:
    for key in pod.labels:
        if key.startswith(RESERVED_LABELS):
            yield _reserved(f"{field}.labels", key, "choose another key")
    for kind, labels in (("labels", pod.labels), ("nodeSelector", pod.node_selector)):
        for key, value in labels.items():
            if not LABEL_VALUE.takes(value):
                message = f" has the value {value!r} for {key}; {LABEL_VALUE.hint}"
                yield _invalid(f"{field}.{kind}", message)


def _volumes(field: str, pod: PodOverrides) -> Iterator[Problem]:
    yield from _twice(f"{field}.volumes", pod.volumes, "name")
    yield from _twice(f"{field}.volumeMounts", pod.volume_mounts, "mountPath")
    names = {str(volume.get("name") or "") for volume in pod.volumes}
    for name in sorted(names):
        if not LABEL.takes(name):
            yield _invalid(f"{field}.volumes", f" has a volume called {name[:80]!r}; {LABEL.hint}")
    for name in sorted(RESERVED_VOLUMES & names):
        yield _reserved(f"{field}.volumes", f"a volume called {name}", "choose another name")
    for mount in pod.volume_mounts:
        path, volume = str(mount.get("mountPath")), mount.get("name")
        if any(path == own or path.startswith(f"{own}/") for own in RESERVED_PATHS):
            yield _reserved(f"{field}.volumeMounts", path, "mount it elsewhere")
        inside = mount.get("subPath")
        if inside and not RELATIVE_PATH.takes(inside):
            yield _invalid(f"{field}.volumeMounts", f" mounts the subPath {inside[:80]!r}; {RELATIVE_PATH.hint}")
        if volume not in names:
            yield _invalid(
                f"{field}.volumeMounts", f" names the volume {volume}, which is not in {field}.volumes; add it there"
            )


def _spread(field: str, pod: PodOverrides) -> Iterator[Problem]:
    yield from _twice(field, pod.topology_spread, "topologyKey", "whenUnsatisfiable")
    for constraint in pod.topology_spread:
        for name in ("maxSkew", "topologyKey", "whenUnsatisfiable"):
            if not constraint.get(name):
                yield _invalid(field, f" has an item without {name}; set it in each item")


def _twice(field: str, items: Sequence[Json], *keys: str) -> Iterator[Problem]:
    """Yields a problem for each duplicate in a list whose items Kubernetes identifies by these keys."""
    counts = Counter(tuple(str(item.get(key)) for key in keys) for item in items)
    for values, number in counts.items():
        if number > 1:
            named = " and ".join(f"{key} {value[:80]}" for key, value in zip(keys, values, strict=True))
            yield _invalid(field, f" has {number} items with {named}; keep one of them")


def _shared(prefill: PodOverrides, decode: PodOverrides) -> Iterator[Problem]:
    """With placement shared both workers are in one pod, so decode.pod may set only fields of its own container."""
    for field, name in _OF_THE_POD.items():
        wanted = getattr(decode, field)
        if wanted and wanted != getattr(prefill, field):
            message = f" has no effect with placement shared, where prefill.pod applies; move it to prefill.pod.{name}"
            yield _invalid(f"decode.pod.{name}", message)
    volumes = {volume.get("name"): volume for volume in prefill.volumes}
    for volume in decode.volumes:
        if volumes.get(volume.get("name"), volume) != volume:
            message = (
                f" and prefill.pod define the volume {volume.get('name')} differently, but placement shared puts both "
                "into one pod; rename one of them"
            )
            yield _invalid("decode.pod.volumes", message)
