"""Commands in documents work as they are written: their files, flags, settings and names exist."""

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from charts.generate import read

from tests.operator.world import SETTINGS, START, merged
from tests.operator.wrong import NEW
from tests.released.record import COMMANDS, flags
from v4_operator.desired import desired_state
from v4_operator.observed.live import Observed
from v4_operator.spec.check import check
from v4_operator.spec.parse import parse

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md"), ROOT / "charts/v4serve/README.md"]
EXAMPLE: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "demo.yaml").read_text())


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yield the document and the words of each command, up to a pipe, a redirection or an ampersand."""
    for document in DOCUMENTS:
        text = document.read_text(encoding="utf-8").replace("\\\n", " ")
        for line in re.findall(r"^    (?:\w+=\$\()?((?:kubectl|helm|docker|v4serve) .*)$", text, re.MULTILINE):
            words = shlex.split(re.sub(r"\$\(.*?\)", "WORD", line.removesuffix(")")), comments=True)
            cut = [index for index, word in enumerate(words) if word in ("|", "&", "<")]
            yield document.name, words[: min(cut, default=len(words))]


ALL = list(commands())


def of(*start: str) -> list[list[str]]:
    """Return the commands that start with these words."""
    return [words for _, words in ALL if words[: len(start)] == list(start)]


def after(words: Sequence[str], *names: str) -> list[str]:
    """Return the values of an option in a command."""
    return [value for name, value in pairwise(words) if name in names]


def parent(change: dict[str, Any]) -> dict[str, Any]:
    """Return the example V4Deployment with a change."""
    obj = merged(EXAMPLE, change)
    obj["metadata"] |= {"namespace": "default", "uid": "u", "generation": 1}
    return obj


def v4d(change: dict[str, Any]) -> Any:
    """Return the example V4Deployment with a change, parsed."""
    return parse(parent(change))


def test_there_are_commands_of_every_program() -> None:
    assert {words[0] for _, words in ALL} == {"kubectl", "helm", "docker", "v4serve"}
    assert len(ALL) > 20


def test_files_exist() -> None:
    files = {file for words in of("kubectl") for file in after(words, "-f")} - {"-"}
    files |= {word for words in of("helm") for word in words if word.startswith("charts")}
    assert {"examples/demo.yaml", "charts/v4serve"} <= files
    assert not [file for file in files if not (ROOT / file).exists()]


def test_patches_give_valid_specs() -> None:
    patches = [json.loads(patch) for words in of("kubectl", "patch") for patch in after(words, "-p")]
    assert patches
    for patch in patches:
        assert v4d(patch) != v4d({})
        assert check(v4d(patch), NEW) == []


def test_children_that_are_named_are_made() -> None:
    objects = {
        (o["kind"].lower(), o["metadata"]["name"]): o
        for o in desired_state(parent({}), Observed(START), SETTINGS).objects
    }
    there = {*objects, ("v4d", "demo")}
    text = "\n".join(" ".join(words) for words in of("kubectl"))
    named = set(re.findall(r"\b(v4d|secret|service)[ /]([a-z][a-z-]+)", text)) - {("secret", "generic")}
    assert named == {("v4d", "demo"), ("secret", "demo-api-key"), ("service", "demo")} <= there
    entries = set(re.findall(r"\{\.data\.(\w+)\}", text))
    assert entries == {"key"} <= objects["secret", "demo-api-key"]["data"].keys()
    ports = set(re.findall(r"port-forward service/demo \d+:(\d+)", text))
    assert ports == {str(port["port"]) for port in objects["service", "demo"]["spec"]["ports"]}


def test_values_of_the_chart_that_are_set_exist() -> None:
    known = {one.name for one in read((ROOT / "charts/v4serve/values.yaml").read_text()).settings()}
    given = [value for words in of("helm") for value in after(words, "--set")]
    assert given
    assert {name for value in given for name in re.findall(r"(?:^|,)([\w.]+)=", value)} <= known


def test_images_that_are_built_are_stages() -> None:
    stages = set(re.findall(r"^FROM .* AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    built = {stage for words in of("docker", "build") for stage in after(words, "--target")}
    assert built == {"router", "worker"} <= stages


def test_flags_of_v4serve_exist() -> None:
    seen = 0
    for _, command, *rest in of("v4serve"):
        if command in COMMANDS:
            assert {word for word in rest if word.startswith("--")} <= set(flags(command)), command
            seen += 1
    assert seen >= 3
