import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.operator.wrong import NEW, OLD, WRONG, Wrong, manifest
from v4_core.kubernetes import WorkerRole
from v4_operator.spec.accelerators import ACCELERATORS
from v4_operator.spec.check import check
from v4_operator.spec.parse import SpecError, parse
from v4_operator.spec.problem import ENGINE_LACKS, Problem

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
PLANNED = sorted((ROOT / "examples/planned").glob("*.yaml"))


def problems(obj: dict[str, Any], server: tuple[int, int] = NEW) -> list[Problem]:
    """What the operator finds, whether it can be a record or not."""
    try:
        return check(parse(obj), server)
    except SpecError as error:
        return [Problem(error.reason, error.message, "")]


def deployments(file: Path) -> list[dict[str, Any]]:
    """V4Deployments of a file of manifests."""
    return [obj for obj in yaml.safe_load_all(file.read_text()) if obj["kind"] == "V4Deployment"]


@pytest.mark.parametrize("wrong", WRONG, ids=lambda wrong: wrong.name)
def test_each_mistake_is_found_without_rules_of_the_server(wrong: Wrong) -> None:
    server = wrong.server if wrong.refused == "operator" else OLD
    found = problems(wrong.manifest(), server)
    assert any(p.reason == wrong.reason and re.search(wrong.says, p.message) for p in found), found


def test_messages_are_short_and_name_no_code() -> None:
    for wrong in WRONG:
        for problem in problems(wrong.manifest(), wrong.server):
            assert len(problem.message) < 400
            assert "None" not in problem.message
            assert "v4_" not in problem.message


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_examples_can_run(file: Path) -> None:
    assert [problem for obj in deployments(file) for problem in problems(obj)] == []


@pytest.mark.parametrize("file", PLANNED, ids=lambda file: file.stem)
def test_planned_examples_lack_nothing_but_the_engine(file: Path) -> None:
    found = [problem for obj in deployments(file) for problem in problems(obj)]
    assert {problem.reason for problem in found} == {ENGINE_LACKS}


def test_domains_of_annotations_may_have_capitals() -> None:
    """The API server checks them in small letters, those of labels as they are."""
    taken = {"router": {"service": {"annotations": {"Example.com/owner": "x"}}}}
    refused = {"router": {"pod": {"labels": {"Example.com/owner": "x"}}}}
    found = [problems(manifest({"model": {"demo": {}}, **spec})) for spec in (taken, refused)]
    assert [len(each) for each in found] == [0, 1]


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 4
    assert len(PLANNED) >= 4


@pytest.mark.parametrize(("server", "lacks"), [((1, 20), True), ((1, 32), True), ((1, 33), False), ((2, 0), False)])
def test_image_volumes_by_server_version(server: tuple[int, int], lacks: bool) -> None:
    found = problems(manifest({"model": {"image": {"reference": "weights:1"}}}), server)
    assert [problem.field for problem in found] == ["model.image"] * lacks


@pytest.mark.parametrize(("server", "taken"), [((1, 31), False), ((1, 32), True)])
def test_names_of_variables_by_server_version(server: tuple[int, int], taken: bool) -> None:
    found = problems(manifest({"decode": {"pod": {"env": [{"name": "0.a b", "value": "c"}]}}}), server)
    assert [problem.field for problem in found] == ["decode.pod.env"] * (not taken)


@pytest.mark.parametrize("role", ["prefill", "decode"])
@pytest.mark.parametrize("kind", sorted(set(ACCELERATORS) - {"cpu"}))
def test_the_number_of_devices_that_is_named_would_do(kind: str, role: WorkerRole) -> None:
    def with_devices(count: int) -> list[str]:
        pool = {"accelerator": {"type": kind, "count": count}}
        for tensor in (1, 2, 4, 8):
            if count % tensor == 0:
                pool["parallel"] = {"tensor": tensor, "data": count // tensor}
        spec = {"model": {"pvc": {"claimName": "w"}, "profile": "flash"}, role: pool}
        return [p.message for p in problems(manifest(spec)) if p.field == f"{role}.accelerator.count"]

    (message,) = with_devices(1)
    named = re.search(r"(\d+) of them are enough", message)
    assert named, message
    least = int(named[1])
    assert with_devices(least) == []
    fewer = [count for count in range(1, least) if 256 % count == 0]
    assert all(with_devices(count) for count in fewer)


def test_no_number_of_devices_helps() -> None:
    pool = {"accelerator": {"type": "l4", "count": 1}}
    spec = {"model": {"pvc": {"claimName": "w"}, "profile": "pro"}, "cache": {"memoryPercent": 95}, "decode": pool}
    found = [p.message for p in problems(manifest(spec)) if p.field == "decode.accelerator.count"]
    assert "no number of them up to 128 is enough" in found[0]
    assert "or give the cache less" in found[0]


def test_the_memory_that_is_named_would_do() -> None:
    spec: dict[str, Any] = {"model": {"demo": {}, "contextLength": 8192}, "prefill": {"resources": {}}}
    spec["prefill"]["resources"]["requests"] = {"memory": "1Mi"}
    (problem,) = problems(manifest(spec))
    named = re.search(r"at least (\d+)Mi", problem.message)
    assert named, problem.message
    spec["prefill"]["resources"]["requests"] = {"memory": f"{named[1]}Mi"}
    assert problems(manifest(spec)) == []
    spec["prefill"]["resources"]["requests"] = {"memory": f"{int(named[1]) - 2}Mi"}
    assert len(problems(manifest(spec))) == 1
