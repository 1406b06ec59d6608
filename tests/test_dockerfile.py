"""Dockerfile and .dockerignore agree with pyproject.toml, and each image has what its processes import."""

import json
import re
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions, requires
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.cluster import dockerfile
from tests.cluster.dockerfile import ROOT

IMAGES = ("router", "worker")
_DESCRIBING = {"pyproject.toml", "constraints.txt", "README.md", "LICENSE"}

_ROUTER = ("v4_router.server", "v4_router.detokenizer")  # which `v4serve local` and `generate` import
# The modules that run in each image. The packages that other modules import may be missing.
_PROCESSES = {
    "router": ("v4_core", "v4_kube", "v4_router", "v4_operator", "v4_cli.main"),
    "worker": ("v4_core", "v4_engine", "v4_kvtransfer", "v4_worker", "v4_prefill", "v4_decode", "v4_cli", *_ROUTER),
}
_IMPORT_ALL = """
import importlib, json, pkgutil, sys
absent, names = json.loads(sys.argv[1])
sys.modules.update(dict.fromkeys(absent))  # importing one of these raises ModuleNotFoundError
for name in names:
    module = importlib.import_module(name)
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), name + "."):
        importlib.import_module(found.name)
"""


@cache
def project() -> dict[str, Any]:
    """Return the content of pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def distributions(requirement: Requirement) -> set[str]:
    """Return the names of the distributions that pip installs for a requirement."""
    found, open_ = set[str](), {(canonicalize_name(requirement.name), extra) for extra in ["", *requirement.extras]}
    done = set[tuple[str, str]]()
    while open_:
        name, extra = one = open_.pop()
        done.add(one)
        found.add(name)
        for line in requires(name) or []:
            needed = Requirement(line)
            if needed.marker is None or needed.marker.evaluate({"extra": extra}):
                open_ |= {(canonicalize_name(needed.name), e) for e in ["", *needed.extras]} - done
    return found


@cache
def installed(image: str) -> frozenset[str]:
    """Return the names of the distributions that an image adds to its base."""
    extras = dockerfile.stages()[f"{image}-packages"].extras()
    return frozenset(distributions(Requirement(f"v4serve[{','.join(extras)}]")))


def test_a_build_may_copy_what_the_project_ships() -> None:
    packages = project()["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert sorted(dockerfile.context()) == sorted([*packages, *_DESCRIBING])
    assert "models/v4_models/demo/model.safetensors" in map(str, dockerfile.context_files())


@pytest.mark.parametrize("image", IMAGES)
def test_extras_are_those_of_the_project(image: str) -> None:
    extras = dockerfile.stages()[f"{image}-packages"].extras()
    assert extras
    assert set(extras) <= set(project()["project"]["optional-dependencies"])


def test_stages_come_from_stages_or_named_base_images() -> None:
    stages, known = dockerfile.stages(), set[str]()
    defaults = dict(re.findall(r"^ARG (\w+)=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    for stage in stages.values():
        assert stage.base in known or defaults[stage.base.strip("${}")]
        copied = {match[1] for copy in stage.all("COPY") if (match := re.match(r"--from=(\S+) ", copy))}
        assert copied <= known
        known.add(stage.name)


@pytest.mark.parametrize("image", IMAGES)
def test_containers_are_restricted(image: str) -> None:
    stage = dockerfile.stages()[image]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", stage.all("USER")[-1]), "a kubelet checks runAsNonRoot by the number"
    assert stage.entrypoint() == ["v4serve"]
    environment = stage.pairs("ENV")
    assert environment["HOME"] == "/tmp"
    assert environment["LOGNAME"], "the user has no entry in /etc/passwd, so looking up its name would fail"


@pytest.mark.parametrize("image", IMAGES)
def test_labels_match_the_project(image: str) -> None:
    labels = {name.rpartition(".")[2]: value for name, value in dockerfile.stages()[image].pairs("LABEL").items()}
    assert labels["version"] == project()["project"]["version"]
    assert labels["licenses"] == project()["project"]["license"]
    assert labels["title"] == f"v4serve {image}"


def test_the_router_image_is_without_torch() -> None:
    assert not {"torch", "numba"} & installed("router")
    assert {"kopf", "kubernetes"} <= installed("router")
    assert {"torch", "huggingface-hub"} <= installed("worker")


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_has_what_its_processes_import(image: str) -> None:
    owners = {module: {*map(canonicalize_name, names)} for module, names in packages_distributions().items()}
    absent = sorted(module for module, names in owners.items() if not names & installed(image))
    assert "pytest" in absent
    arguments = json.dumps([absent, _PROCESSES[image]])
    done = subprocess.run([sys.executable, "-c", _IMPORT_ALL, arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
