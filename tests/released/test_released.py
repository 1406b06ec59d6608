"""Parts of different versions work together, and stored V4Deployments stay valid.

An upgrade of the chart leaves images that run, and images that a user pinned; a V4Deployment may name a newer image
than its operator's. So what is passed by default must be known to every release, and what a release knows stays known.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.test_manifests import SNAPSHOT
from tests.operator.test_desired import objects
from tests.operator.world import Obj
from tests.released.record import record
from v4_core.kubernetes import POLICY_FILE

RELEASES = sorted(Path(__file__).parent.glob("*.yaml"))
SOURCES: list[Obj] = [
    {"demo": {}},
    {"pvc": {"claimName": "weights"}},
    {"huggingFace": {"repository": "a/b"}},
]
NOW = record()

Json = Mapping[str, Any]


@pytest.fixture(params=RELEASES, ids=lambda file: file.stem)
def release(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What a release knows."""
    known: dict[str, Any] = yaml.safe_load(request.param.read_text())
    return known


def commands(objs: Sequence[Obj]) -> Iterator[tuple[str, set[str]]]:
    """What is started in containers of `v4serve`, and with which flags."""
    for obj in objs:
        if obj["kind"] in ("Deployment", "Job"):
            for container in obj["spec"]["template"]["spec"]["containers"]:
                line = [*container.get("command", ())[1:], *container["args"]]
                yield line[0], {word.partition("=")[0] for word in line if word.startswith("--")}


def started() -> list[tuple[str, set[str]]]:
    """What the chart and the operator start by default."""
    chart = [obj for obj in yaml.safe_load_all(SNAPSHOT.read_text()) if obj]
    plans = [objects({"model": source, "placement": p}) for source in SOURCES for p in ("separate", "shared")]
    return [command for objs in (chart, *plans) for command in commands(objs)]


def test_this_version_is_recorded() -> None:
    assert version("v4serve") in {file.stem for file in RELEASES}, "python -m tests.released.record, and its result"


def test_older_images_know_every_flag_that_is_passed_by_default(release: dict[str, Any]) -> None:
    seen = started()
    assert {command for command, _ in seen} == set(NOW["flags"])
    unknown = {flag for command, flags in seen for flag in flags if flag not in release["flags"][command]}
    assert not unknown, "an older image ends at a flag that it does not know: pass it only where a user asks for it"


def test_older_routers_know_every_key_of_the_policy(release: dict[str, Any]) -> None:
    (policy,) = [obj for obj in objects({}) if obj["kind"] == "ConfigMap" and POLICY_FILE in obj["data"]]
    assert yaml.safe_load(policy["data"][POLICY_FILE]).keys() <= set(release["policy"])


def test_what_older_charts_and_operators_pass_is_still_known(release: dict[str, Any]) -> None:
    assert set(release["policy"]) <= set(NOW["policy"])
    for command, flags in release["flags"].items():
        assert set(flags) <= set(NOW["flags"][command]), command


def test_a_v4deployment_that_was_valid_is_valid(release: dict[str, Any]) -> None:
    found = {path: narrower(old, NOW["schema"].get(path)) for path, old in release["schema"].items()}
    assert not {path: why for path, why in found.items() if why}, "stored objects could not be changed any more"


def narrower(old: Json, new: Json | None) -> str:
    """How the limits of a field forbid what they once allowed; empty if they do not."""
    if new is None:
        return "the field is gone"
    if not set(new.get("required", ())) <= set(old.get("required", ())):
        return "more is required"
    if "enum" in new and ("enum" not in old or set(old["enum"]) - set(new["enum"])):
        return "words are gone"
    for name in ("minimum", "minLength"):
        if new.get(name, float("-inf")) > old.get(name, float("-inf")):
            return f"{name} is higher"
    for name in ("maximum", "maxLength", "maxItems"):
        if new.get(name, float("inf")) < old.get(name, float("inf")):
            return f"{name} is lower"
    lists = ("x-kubernetes-list-type", "x-kubernetes-list-map-keys")
    changed = (name for name in ("type", "pattern", *lists) if name in new and new[name] != old.get(name))
    return next((f"{name} is another" for name in changed), "")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ({"type": "integer", "maximum": 5}, {"type": "integer", "maximum": 6}, ""),
        ({"type": "integer", "maximum": 5}, {"type": "integer", "maximum": 4}, "maximum is lower"),
        ({"type": "integer"}, {"type": "integer", "maximum": 4}, "maximum is lower"),
        ({"minimum": 1}, {"minimum": 2}, "minimum is higher"),
        ({"enum": ["a", "b"]}, {"enum": ["b", "a", "c"]}, ""),
        ({"enum": ["a", "b"]}, {"enum": ["a"]}, "words are gone"),
        ({"enum": ["a", "b"]}, {}, ""),
        ({"type": "string"}, {"type": "string", "enum": ["a"]}, "words are gone"),
        ({"type": "string"}, {"type": "integer"}, "type is another"),
        ({"type": "string"}, {"type": "string", "pattern": "a"}, "pattern is another"),
        ({"pattern": "a"}, {}, ""),
        ({"type": "array"}, {"type": "array", "x-kubernetes-list-type": "map"}, "x-kubernetes-list-type is another"),
        ({"required": ["a"]}, {"required": ["a", "b"]}, "more is required"),
        ({"required": ["a"]}, {}, ""),
        ({}, None, "the field is gone"),
    ],
)
def test_narrower(old: Json, new: Json | None, why: str) -> None:
    assert narrower(old, new) == why
