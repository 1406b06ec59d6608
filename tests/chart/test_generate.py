"""values.yaml is the only source: schema, README and templates say the same."""

import json
import re
from typing import Any

import pytest
from charts.generate import CHART, ValuesError, generated, read, readme

from tests.chart.helm import Helm, HelmFailed, nested

# What templates read: `.Values.a.b`, also of a context by another name.
_USED = re.compile(r"\.Values\.([A-Za-z0-9.]*[A-Za-z0-9])")


def test_generated_files_are_current() -> None:
    stale = [path.name for path, content in generated(CHART).items() if path.read_text(encoding="utf-8") != content]
    assert stale == [], "run: make chart"


def test_every_setting_is_used_and_every_use_is_a_setting() -> None:
    settings = {one.name for one in read((CHART / "values.yaml").read_text(encoding="utf-8")).settings()}
    templates = [path for path in (CHART / "templates").rglob("*") if path.is_file()]
    used = {name for path in templates for name in _USED.findall(path.read_text(encoding="utf-8"))}
    # The two images are handed to one template, which reads the rest.
    used |= {f"{name}.{key}" for name in used & {"image.router", "image.worker"} for key in _image_keys()}
    assert sorted(used - {"image.router", "image.worker"} - settings) == []
    assert sorted(settings - used) == []


def _image_keys() -> set[str]:
    helpers = (CHART / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    return set(re.findall(r"\.image\.(\w+)", helpers))


def test_a_comment_gives_text_and_keywords_and_the_default_gives_the_type() -> None:
    values = read("# Some words.\ngroup:\n  # -- What it does.\n  # @schema {minimum: 1}\n  size: 2\n")
    (size,) = values.settings()
    assert (size.name, size.text, size.default) == ("group.size", "What it does.", 2)
    assert values.schema() == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "group": {
                "type": "object",
                "additionalProperties": False,
                "properties": {"size": {"description": "What it does.", "type": "integer", "default": 2, "minimum": 1}},
            }
        },
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("size: 2\n", "size: say in a comment"),
        ("# Not marked.\nsize: 2\n", "size: say in a comment"),
        ("group: {}\n", "group: say in a comment"),
        ("# -- Text.\nlist: []\n", "list: say in a comment `# @schema"),
        ("# -- Text.\nnothing:\n", "nothing: a default must say its type"),
        ("# -- Text.\n# @schema wrong\nsize: 2\n", "size: @schema needs a mapping"),
        ("- 1\n", "must be a mapping"),
    ],
)
def test_values_that_say_too_little_are_refused(text: str, message: str) -> None:
    with pytest.raises(ValuesError, match=re.escape(message)):
        read(text)


def test_a_readme_without_a_place_for_the_table_is_refused() -> None:
    with pytest.raises(ValuesError, match=r"README.md lacks the lines"):
        readme(read("# -- Text.\nsize: 2\n"), "# No table\n")


REJECTED: list[tuple[str, Any]] = [
    ("operator.replica", 2),  # no such key
    ("unknown", True),
    ("operator.replicas", "two"),
    ("operator.replicas", -1),
    ("image.pullPolicy", "Sometimes"),
    ("image.router.digest", "sha256:12"),
    ("image.worker.repository", ""),
    ("watch.namespaces", "team"),
    ("watch.namespaces", ["Team"]),
    ("watch.namespaces", ["team", "team"]),
    ("global.labels", {"tier": 1}),
    ("global.imagePullSecrets", [{"key": "mirror"}]),
    ("operator.networkPolicy.apiServerPorts", []),
    ("operator.networkPolicy.apiServerPorts", [70000]),
    ("fullnameOverride", "Not_A_Name"),
    ("tests.timeoutSeconds", 1),
    ("crds.install", "yes"),
    ("logFormat", "text"),
    ("monitoring.podMonitor.enabled", "yes"),
    ("monitoring.rules.enabled", "always"),
    ("monitoring.labels", {"release": 1}),
    ("monitoring.slo.objective", 1),
    ("monitoring.slo.objective", "99"),
    ("operator.serviceAccount", {"create": False}),  # and no name
]


@pytest.mark.parametrize(("name", "value"), REJECTED)
def test_wrong_values_are_rejected_by_name(helm: Helm, name: str, value: Any) -> None:
    with pytest.raises(HelmFailed) as refusal:
        helm.template(nested(name, value))
    assert name.rpartition(".")[2] in str(refusal.value)


def test_globals_of_other_charts_are_accepted(helm: Helm) -> None:
    helm.template({"global": {"storageClass": "fast"}})


def test_the_schema_forbids_unknown_keys_everywhere_but_in_globals() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    groups = {name: group for name, group in _groups(schema, ()) if "properties" in group}
    assert {name for name, group in groups.items() if group["additionalProperties"]} == {("global",)}
    assert len(groups) > 5


def _groups(schema: dict[str, Any], path: tuple[str, ...]) -> list[tuple[tuple[str, ...], dict[str, Any]]]:
    below = [found for key, child in schema.get("properties", {}).items() for found in _groups(child, (*path, key))]
    return [(path, schema), *below]
