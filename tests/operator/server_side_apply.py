"""Server-side apply by one of several managers: desired fields are set, and fields it no longer desires are removed.

Others' fields stay, and so do others' items of lists that are merged by a key.
"""

import copy
from collections.abc import Mapping
from typing import Any

_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "imagePullSecrets": ("name",),
    "ownerReferences": ("uid",),
}
_ATOMIC = frozenset({"selector", "podSelector", "nodeSelector"})


def applied(live: Mapping[str, Any], before: Mapping[str, Any], desired: Mapping[str, Any]) -> dict[str, Any]:
    """Returns `live` after the manager, which applied `before` last, applies `desired`."""
    result: dict[str, Any] = _merged(_without(live, before, desired), desired, "")
    return result


def _without(live: Any, before: Any, desired: Any) -> Any:
    """Returns `live` without the fields that the manager no longer desires."""
    if not isinstance(live, Mapping) or not isinstance(before, Mapping) or not isinstance(desired, Mapping):
        return live
    result = {}
    for key, value in live.items():
        if key in before and key not in desired:
            continue
        was, wanted = before.get(key), desired.get(key)
        if key in _KEYS and isinstance(value, list):
            was, wanted = _by_key(was, key), _by_key(wanted, key)
            result[key] = list(_without(_by_key(value, key), was, wanted).values())
        else:
            result[key] = _without(value, was, wanted)
    return result


def _merged(live: Any, desired: Any, key: str) -> Any:
    if isinstance(desired, Mapping) and isinstance(live, Mapping) and key not in _ATOMIC:
        return {**live, **{name: _merged(live.get(name), value, name) for name, value in desired.items()}}
    if isinstance(desired, list) and isinstance(live, list) and key in _KEYS:
        return list(_merged(_by_key(live, key), _by_key(desired, key), "").values())
    return copy.deepcopy(desired)


def _by_key(items: Any, key: str) -> dict[tuple[Any, ...], Any]:
    return {tuple(item.get(name) for name in _KEYS[key]): item for item in items or ()}
