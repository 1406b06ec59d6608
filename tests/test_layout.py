"""Rules for the repository as a whole: its folders, its documents, its generated files."""

import re
import subprocess
import tomllib
from dataclasses import fields
from pathlib import Path
from typing import Annotated, get_origin, get_type_hints

from charts import settings_document

ROOT = Path(__file__).parents[1]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]

# `folder/file.ext` or `folder/`, in backticks: a path that a document names.
_NAMED_PATH = re.compile(r"`((?:[\w.-]+/)+(?:[\w.-]+\.\w+)?)`")


def test_operator_is_no_package() -> None:
    """A package would shadow the standard library's `operator` for every Python that is started in the root."""
    assert not (ROOT / "operator" / "__init__.py").exists()


def test_folders_hold_one_package_each_and_are_none_themselves() -> None:
    for package in ROOT.glob("*/v4_*/__init__.py"):
        component = package.parents[1]
        assert not (component / "__init__.py").exists(), f"{component.name}/ must not be a package"
        assert len(list(component.glob("*/__init__.py"))) == 1
        assert (package.parent / "py.typed").exists(), f"{package.parent.name} lacks py.typed"


def test_every_package_is_shipped_checked_and_layered() -> None:
    """A component that is missing from one of these lists would silently be left out."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = sorted(str(init.parent.relative_to(ROOT)) for init in ROOT.glob("*/v4_*/__init__.py"))
    folders = {package.partition("/")[0] for package in packages}
    assert sorted(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) == packages
    assert sorted(project["tool"]["importlinter"]["root_packages"]) == sorted(p.partition("/")[2] for p in packages)
    assert folders <= set(project["tool"]["mypy"]["files"])
    assert folders <= set(project["tool"]["ruff"]["src"])


def test_every_folder_of_tests_is_a_package() -> None:
    """Packages allow two test files of one name, and a folder that is named like a module."""
    folders = {file.parent for file in (ROOT / "tests").rglob("*.py")}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_documents_name_only_what_exists() -> None:
    named = {
        (document.name, path) for document in DOCUMENTS for path in _NAMED_PATH.findall(document.read_text("utf-8"))
    }
    assert sorted((document, path) for document, path in named if not (ROOT / path).exists()) == []


def test_the_licence_is_apache() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()


def test_the_readme_names_both_commands() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "make demo" in readme
    assert "make test" in readme


def test_make_lists_every_target() -> None:
    listed = subprocess.run(["make", "-s", "-C", str(ROOT)], capture_output=True, text=True, check=True).stdout
    targets = ("demo", "serve", "test", "check", "bench", "soak", "proto")
    assert [target for target in targets if f"make {target} " not in listed] == []


def test_the_document_of_settings_is_generated() -> None:
    text = settings_document.FILE.read_text(encoding="utf-8")
    assert all(f"<!-- settings: {name} -->" in text for name in settings_document.CONFIGS)
    assert settings_document.document(text) == text, "run `make chart`"


def test_every_setting_has_a_text() -> None:
    """A field without a Setting would have no flag and no line in docs/settings.md."""
    for config in settings_document.CONFIGS.values():
        hints = get_type_hints(config, include_extras=True)
        bare = [field.name for field in fields(config) if get_origin(hints[field.name]) is not Annotated]
        assert bare == [], config.__name__
