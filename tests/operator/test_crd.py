"""The custom resource definition is complete and small, and agrees with the parsed records and the accelerators."""

import json
import re
from typing import Any, get_args

import pytest

from tests.operator.schema import CRD, CRD_FILE, SCHEMA, SPEC, STATUS, VERSION, defaulted, fields
from tests.operator.spec.test_syntax import REFUSED, TAKEN
from tests.operator.world import SETTINGS, v4deployment
from tests.operator.wrong import manifest
from v4_core import kubernetes as names
from v4_core.formats import INDEX_FORMATS, STORAGE_FORMATS
from v4_core.profiles import PROFILES
from v4_core.settings import keys
from v4_operator.manifests.router_objects import router_deployment
from v4_operator.spec.accelerators import ACCELERATORS
from v4_operator.spec.parse import parse
from v4_operator.spec.syntax import LABEL, LABEL_VALUE, REPOSITORY, SUBDOMAIN, Rule
from v4_operator.spec.v4deployment import Placement, Source, Transport
from v4_router.config import RouterConfig
from v4_worker.config import WorkerConfig

RULES = SPEC["x-kubernetes-validations"]
SOURCES: dict[str, dict[str, Any]] = {
    "demo": {},
    "pvc": {"claimName": "weights"},
    "hostPath": {"path": "/models/v4"},
    "image": {"reference": "weights:1"},
    "huggingFace": {"repository": "owner/name"},
}


def at(path: str) -> dict[str, Any]:
    """The schema of a field of the spec."""
    return dict(fields(SPEC))[tuple(path.split("."))]


def test_names() -> None:
    assert CRD["metadata"]["name"] == f"{names.PLURAL}.{names.GROUP}"
    assert CRD["spec"]["group"] == names.GROUP
    assert CRD["spec"]["names"]["kind"] == names.KIND
    assert CRD["spec"]["names"]["shortNames"] == ["v4d"]
    assert CRD["spec"]["names"]["categories"] == ["all"]
    assert VERSION["name"] == names.VERSION


def test_it_is_small() -> None:
    assert len(json.dumps(CRD)) < 100_000
    assert len(CRD_FILE.read_bytes()) < 100_000


@pytest.mark.parametrize(("path", "field"), [*fields(SPEC), *fields(STATUS)], ids=lambda value: str(value)[:60])
def test_every_field_is_described(path: tuple[str, ...], field: dict[str, Any]) -> None:
    if path[-2:-1] == ("[]",) and path[0] != "conditions":
        return  # the name of an item of a Kubernetes type
    description = field.get("description", "")
    assert description.endswith("."), path
    assert len(description) <= 300, path
    assert "\n" not in description


def test_descriptions_say_the_default() -> None:
    for path, field in fields(SPEC):
        default = field.get("default", {})
        shown = str(default).lower() if isinstance(default, bool) else default
        assert default == {} or field["description"].endswith(f" Default {shown}."), path


def test_numbers_say_their_unit() -> None:
    units = {
        "Seconds": "econds",
        "memory": "bytes",
        "size": "bytes",
        "Percent": "percent",
        "bytesPerSecond": "bytes per",
    }
    for path, field in [*fields(SPEC), *fields(STATUS)]:
        for ending, unit in units.items():
            if path[-1].endswith(ending) and field["type" if "type" in field else "anyOf"] != "object":
                assert unit in field["description"], path


def test_status_is_closed_and_spec_is_bounded() -> None:
    text = json.dumps(STATUS)
    assert "preserve-unknown" not in text
    assert "additionalProperties" not in text
    for path, field in fields(SPEC):
        if field.get("type") == "integer":
            assert {"minimum", "maximum"} <= set(field), path
        if field.get("type") == "string" and "enum" not in field:
            assert "maxLength" in field, path
        if field.get("type") == "array":
            assert "maxItems" in field, path


def test_rules_are_at_the_root_and_at_spec_only() -> None:
    holders = [path for path, field in fields(SCHEMA) if "x-kubernetes-validations" in field]
    assert holders == [("spec",)]
    assert len(SCHEMA["x-kubernetes-validations"]) == 1


def test_messages_say_what_to_do() -> None:
    verbs = r"\b(change|choose|give|lower|make|remove|set|use|raise|be left out)\b"
    for rule in [*SCHEMA["x-kubernetes-validations"], *RULES]:
        assert re.search(verbs, rule["message"]), rule["message"]
        assert len(rule["message"]) < 300


@pytest.mark.parametrize("source", SOURCES)
def test_defaults_are_those_of_the_records(source: str) -> None:
    obj = manifest({"model": {source: SOURCES[source]}})
    assert parse(defaulted(SCHEMA, obj)) == parse(obj)


def test_enums_are_those_of_the_records() -> None:
    assert set(SOURCES) == set(get_args(Source))
    assert at("placement")["enum"] == list(get_args(Placement))
    assert at("transfer.transport")["enum"] == list(get_args(Transport))
    assert at("model.profile")["enum"] == list(PROFILES)
    assert set(at("cache.format")["enum"]) == {"auto", *STORAGE_FORMATS}
    assert set(at("cache.indexFormat")["enum"]) == {"auto", *INDEX_FORMATS}
    for pool in ("prefill", "decode"):
        assert at(f"{pool}.accelerator.type")["enum"] == list(ACCELERATORS)


def changed(field: dict[str, Any]) -> Any:
    """A value of a field other than its default."""
    if "enum" in field:
        return next(value for value in reversed(field["enum"]) if value != field.get("default"))
    if field.get("x-kubernetes-int-or-string"):
        return "3Gi"
    if field["type"] == "boolean":
        return not field["default"]
    if field["type"] == "integer":
        return field["minimum"] + 1 if field.get("default") == field["minimum"] else field["minimum"]
    if field["type"] == "array":
        return [{"name": "other", "mountPath": "/other"}]
    return {"other": "one"} if field["type"] == "object" else "other"


def test_every_field_reaches_a_record() -> None:
    for path, field in fields(SPEC):
        if field.get("properties") or "[]" in path or path == ("model", "demo"):
            continue
        source = path[1] if path[:1] == ("model",) and path[1] in SOURCES else "hostPath"
        spec: dict[str, Any] = {"model": {source: dict(SOURCES[source])}}
        before = parse(manifest(spec))
        value = changed(field)
        for name in reversed(path):
            value = {name: value}
        merged = manifest(_merge(spec, value))
        assert parse(merged) != before, path


def _merge(base: Any, over: Any) -> Any:
    if isinstance(base, dict) and isinstance(over, dict):
        return base | {key: _merge(base.get(key), value) for key, value in over.items()}
    return over


def test_the_lists_in_rules_are_the_table_of_accelerators() -> None:
    def listed(words: str) -> set[str]:
        (rule,) = (rule["rule"] for rule in RULES if words in rule["message"])
        return set(re.findall(r"'([a-z0-9-]+)'", rule[rule.index("type in [") :]))

    kinds = ACCELERATORS.items()
    assert listed("indexFormat fp8 need") == {name for name, kind in kinds if "fp8" not in kind.formats}
    assert listed("indexFormat fp4 needs") == {name for name, kind in kinds if "fp4" in kind.formats}
    assert listed("transport nvlink needs") == {name for name, kind in kinds if kind.link != "nvlink"}


def test_the_sizes_in_rules_are_the_profiles() -> None:
    tables = [dict(re.findall(r"'(\w+)': (\d+)", rule["rule"])) for rule in RULES if "{'demo'" in rule["rule"]]
    groups = {name: str(profile.o_groups) for name, profile in PROFILES.items()}
    experts = {name: str(profile.n_routed_experts) for name, profile in PROFILES.items()}
    assert tables == [groups, groups, experts, experts]
    assert all(profile.num_heads % profile.o_groups == 0 for profile in PROFILES.values())
    longest = {name: profile.max_position for name, profile in PROFILES.items()}
    assert any(f"<= {longest['demo']}" in rule["rule"] for rule in RULES)
    assert at("model.contextLength")["maximum"] == longest["flash"] == longest["pro"]


NAMED: dict[str, Rule] = {
    "model.pvc.claimName": SUBDOMAIN,
    "model.huggingFace.tokenSecret": SUBDOMAIN,
    "model.huggingFace.claim": SUBDOMAIN,
    "model.huggingFace.storageClass": SUBDOMAIN,
    "model.huggingFace.repository": REPOSITORY,
    "router.apiKeysSecret": SUBDOMAIN,
    **{
        f"{part}.pod.{field}": rule
        for part in ("prefill", "decode", "router")
        for field, rule in {
            "priorityClassName": SUBDOMAIN,
            "runtimeClassName": SUBDOMAIN,
            "serviceAccountName": SUBDOMAIN,
            "imagePullSecrets.[].name": SUBDOMAIN,
            "volumes.[].name": LABEL,
            "labels": LABEL_VALUE,
            "nodeSelector": LABEL_VALUE,
        }.items()
    },
}


@pytest.mark.parametrize("path", NAMED)
def test_patterns_are_the_rules_of_the_operator(path: str) -> None:
    schema, rule = at(path), NAMED[path]
    schema = schema.get("additionalProperties", schema)
    for name in [name for same, examples in (*TAKEN, *REFUSED) if same is rule for name in examples]:
        long_enough = schema.get("minLength", 0) <= len(name) <= schema["maxLength"]
        # `$` matches only the end of the text in the API server; in Python it matches before a final newline as well.
        taken = long_enough and re.search(schema["pattern"].replace("$", r"\Z"), name) is not None
        assert taken == rule.takes(name), name


def test_columns_and_subresources_name_fields() -> None:
    known = {".".join(("", *path)) for path, _ in fields(SCHEMA)} | {".metadata.creationTimestamp"}
    columns = {column["name"]: column["jsonPath"] for column in VERSION["additionalPrinterColumns"]}
    assert list(columns)[:4] == ["Ready", "Prefill", "Decode", "Model"]
    assert list(columns)[-1] == "Age"
    scale = VERSION["subresources"]["scale"]
    for path in [*columns.values(), *scale.values()]:
        assert re.sub(r"\.conditions\[.*\]", ".conditions.[]", path) in known, path


@pytest.mark.parametrize(
    ("field", "setting"),
    [
        ("model.contextLength", "max_model_len"),
        ("cache.format", "format"),
        ("cache.indexFormat", "index_format"),
        ("cache.slots", "slots"),
        ("cache.maxSequences", "max_sequences"),
        ("cache.checkpointEvery", "checkpoint_every"),
        ("transfer.leaseSeconds", "lease_seconds"),
        ("transfer.pullTimeoutSeconds", "pull_timeout_seconds"),
    ],
)
def test_a_field_that_mirrors_a_setting_has_its_default(field: str, setting: str) -> None:
    """A field without a default in the schema leaves the choice to the worker, which 0 does there too."""
    defaults = {key.name: key.default for key in keys(WorkerConfig)}
    assert at(field).get("default", 0) == defaults[setting]


def test_the_router_gets_only_flags_that_it_has() -> None:
    container = router_deployment(v4deployment(), SETTINGS, "r")["spec"]["template"]["spec"]["containers"][0]
    given = {argument for argument in container["args"] if argument.startswith("--")}
    assert given <= {key.flag for key in keys(RouterConfig)}
