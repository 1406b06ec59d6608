"""Reads the rotary embedding of a `config.json`: DeepSeek's `rope_scaling` and transformers' `rope_parameters`.

V4 rotates the queries and rows of sliding-window layers by plain RoPE, and those of compressed layers by YaRN with an
amplitude of 1.0 (reference 2.4). In transformers one spelling overrides the other; here both must agree.
"""

from typing import Any

from v4_core.config_values import Json, agreed, group, real, real_or_none, refuse_unknown, whole
from v4_core.errors import ConfigError

_MAIN, _COMPRESS, _SCALING = "rope_parameters.main", "rope_parameters.compress", "rope_scaling"

# The fields of a group that are read or that repeat another field.
_READ = {
    "type", "rope_type", "rope_theta", "factor", "beta_fast", "beta_slow", "original_max_position_embeddings",
    "attention_factor", "partial_rotary_factor",
}  # fmt: skip


def rope(data: Json) -> dict[str, Any]:
    """Returns `rope_dim`, `rope_theta`, `compress_rope_theta`, and `yarn` as a dict or None. Raises ConfigError."""
    groups = _groups(data)
    main, compress, scaling = (groups.get(name, {}) for name in (_MAIN, _COMPRESS, _SCALING))
    theta = _theta({"rope_theta": data, f"{_MAIN}.rope_theta": main})
    compress_theta = _theta({"compress_rope_theta": data, f"{_COMPRESS}.rope_theta": compress})
    if real_or_none(scaling, "rope_theta") not in (None, theta, compress_theta):
        raise ConfigError(
            f"config.json contradicts itself: {_SCALING}.rope_theta is {scaling['rope_theta']!r}, rope_theta is "
            f"{theta!r} and compress_rope_theta is {compress_theta!r}; correct or remove one of them"
        )
    if _kind(_MAIN, main) not in (None, "default"):
        raise ConfigError(
            f"{_MAIN}.rope_type is {_kind(_MAIN, main)!r}; only 'default' is supported: V4's sliding-window layers "
            "have plain RoPE"
        )
    yarns = {name: _yarn(name, groups[name]) for name in (_SCALING, _COMPRESS) if groups.get(name)}
    return {
        "rope_dim": _rope_dim(data, groups),
        "rope_theta": theta,
        "compress_rope_theta": compress_theta,
        "yarn": agreed(yarns) or None,
    }


def _groups(data: Json) -> dict[str, Json]:
    """All groups of rope fields in the config, by name."""
    nested = group(data, "rope_parameters")
    refuse_unknown("rope_parameters field", nested, {"main", "compress"})
    groups = {f"rope_parameters.{key}": group(nested, key) for key in nested} | {_SCALING: group(data, _SCALING)}
    for fields in groups.values():
        refuse_unknown("rope field", fields, _READ)
    return groups


def _theta(places: dict[str, Json]) -> float:
    """The base on which all places agree. If none has it, the error names the field of the first place."""
    stated = {name: real_or_none(fields, name.rpartition(".")[2]) for name, fields in places.items()}
    theta = agreed(stated)
    if theta is None:
        raise ConfigError(f"config.json lacks the field {next(iter(places))!r}")
    return float(theta)


def _rope_dim(data: Json, groups: dict[str, Json]) -> int:
    """The number of rotated channels, given as a number or as a fraction of the head's channels."""
    head_dim = whole(data, "head_dim")
    stated: dict[str, int | None] = {}
    if data.get("qk_rope_head_dim") is not None:
        stated["qk_rope_head_dim"] = whole(data, "qk_rope_head_dim")
    for prefix, fields in {"": data, **{f"{name}.": fields for name, fields in groups.items()}}.items():
        fraction = real_or_none(fields, "partial_rotary_factor")
        if fraction is not None:
            if not 0 < fraction <= 1:
                raise ConfigError(f"config.json has {prefix}partial_rotary_factor={fraction}; it must be in (0, 1]")
            stated[f"head_dim * {prefix}partial_rotary_factor ({head_dim} * {fraction})"] = round(head_dim * fraction)
    dim = agreed(stated)
    if dim is None:
        raise ConfigError("config.json lacks the field 'qk_rope_head_dim' or 'partial_rotary_factor'")
    return int(dim)


def _kind(name: str, fields: Json) -> Any:
    """`rope_type`, or `type` in the older spelling."""
    return agreed({f"{name}.type": fields.get("type"), f"{name}.rope_type": fields.get("rope_type")})


def _yarn(name: str, fields: Json) -> dict[str, float]:
    """The parameters of YaRN; empty for plain RoPE."""
    kind = _kind(name, fields)
    if kind == "default":
        return {}
    if kind != "yarn":
        raise ConfigError(f"{name} type is {kind!r}; only 'yarn' is supported")
    if real(fields, "attention_factor", 1.0) != 1.0:
        raise ConfigError(f"{name} has an attention_factor other than 1.0, which V4 does not use")
    return {
        "factor": real(fields, "factor"),
        "beta_fast": real(fields, "beta_fast"),
        "beta_slow": real(fields, "beta_slow"),
        "original_max_position": whole(fields, "original_max_position_embeddings"),
    }
