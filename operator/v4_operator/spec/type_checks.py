"""Checks the types of users' additions to pods and network policies against Kubernetes' API. Pure.

The CRD's schema does not validate these parts, and the API server rejects a whole child if one value has a wrong type.
Fields that the client library does not know are left to the API server, which may be newer than the library.
"""

import re
import reprlib
from collections.abc import Iterator, Mapping
from typing import Any

from kubernetes.client import models

from v4_operator.spec.fields import QUANTITY_HINT, quantity
from v4_operator.spec.problem import INVALID_SPEC, Problem
from v4_operator.spec.v4deployment import PodOverrides, Spec

_OF_PODS = (
    ("tolerations", "tolerations", "list[V1Toleration]"),
    ("affinity", "affinity", "V1Affinity"),
    ("topologySpreadConstraints", "topology_spread", "list[V1TopologySpreadConstraint]"),
    ("env", "env", "list[V1EnvVar]"),
    ("volumes", "volumes", "list[V1Volume]"),
    ("volumeMounts", "volume_mounts", "list[V1VolumeMount]"),
)
_SCALARS: dict[str, tuple[type, str]] = {
    "str": (str, "text"),
    "int": (int, "a whole number"),
    "bool": (bool, "true or false"),
}
# Fields of type Quantity. The library declares them as strings, but the API server accepts numbers as well.
_QUANTITY, _QUANTITIES = "quantity", "quantities by name"
_AMOUNTS = {"sizeLimit": _QUANTITY, "divisor": _QUANTITY, "requests": _QUANTITIES, "limits": _QUANTITIES}
_LIST = re.compile(r"list\[(.+)\]", re.IGNORECASE)
_DICT = re.compile(r"dict[(\[]str, (.+)[)\]]", re.IGNORECASE)


def type_problems(spec: Spec) -> Iterator[Problem]:
    """Yields a problem for each wrongly typed value in pods and in networkPolicy.scrapeFrom."""
    parts = (("prefill", spec.prefill.pod), ("decode", spec.decode.pod), ("router", spec.router.pod))
    for name, pod in parts:
        yield from _of_pod(f"{name}.pod", pod)
    yield from _faults("networkPolicy.scrapeFrom", list(spec.scrape_from), "list[V1NetworkPolicyPeer]")


def _of_pod(name: str, pod: PodOverrides) -> Iterator[Problem]:
    for field, attribute, kind in _OF_PODS:
        value = getattr(pod, attribute)
        yield from _faults(f"{name}.{field}", dict(value) if isinstance(value, Mapping) else list(value), kind)


def _faults(field: str, value: Any, kind: str) -> Iterator[Problem]:
    """Yields the problems of `value`, which should have the type `kind` in the client library's notation."""
    if value is None:
        return
    if items := _LIST.fullmatch(kind):
        yield from _of_list(field, value, items[1])
    elif values := _DICT.fullmatch(kind):
        yield from _of_mapping(field, value, values[1])
    elif kind == _QUANTITIES:
        yield from _of_mapping(field, value, _QUANTITY)
    elif kind == _QUANTITY:
        if quantity(value) is None:
            yield Problem(INVALID_SPEC, f"{field} is {reprlib.repr(value)}; {QUANTITY_HINT}", field)
    elif kind in _SCALARS:
        wanted, name = _SCALARS[kind]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            quoted = "; write it in quotes" if kind == "str" and isinstance(value, bool | int | float) else ""
            yield _wrong(field, f"{name}, not {reprlib.repr(value)}{quoted}")
    elif model := getattr(models, kind, None):
        types = {w: _AMOUNTS.get(w, model.openapi_types[name]) for name, w in model.attribute_map.items()}
        yield from _of_mapping(field, value, types)


def _of_list(field: str, value: Any, kind: str) -> Iterator[Problem]:
    if not isinstance(value, list):
        yield _wrong(field, f"a list, not {reprlib.repr(value)}")
        return
    for place, item in enumerate(value):
        yield from _faults(f"{field}[{place}]", item, kind)


def _of_mapping(field: str, value: Any, types: Mapping[str, str] | str) -> Iterator[Problem]:
    """Yields the problems of an object. `types` maps its fields to types, or is the type of every field."""
    if not isinstance(value, Mapping):
        yield _wrong(field, f"an object, not {reprlib.repr(value)}")
        return
    for name, item in value.items():
        if kind := types if isinstance(types, str) else types.get(name):
            yield from _faults(f"{field}.{name}", item, kind)


def _wrong(field: str, message: str) -> Problem:
    return Problem(INVALID_SPEC, f"{field} must be {message}", field)
