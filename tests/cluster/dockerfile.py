"""What Dockerfile and .dockerignore say, for those who build or check the same image without Docker. Runs nothing."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_EXTRAS = re.compile(r"/source\[([\w,]+)\]")


@dataclass(frozen=True)
class Stage:
    """One FROM with what follows it, in order: (instruction, arguments), continuation lines joined."""

    name: str
    base: str
    steps: tuple[tuple[str, str], ...]

    def all(self, instruction: str) -> list[str]:
        """The arguments of every step of this kind."""
        return [arguments for word, arguments in self.steps if word == instruction]

    def pairs(self, instruction: str) -> dict[str, str]:
        """The names and values that its ENV or LABEL steps set."""
        words = [word for arguments in self.all(instruction) for word in shlex.split(arguments)]
        return dict(word.split("=", 1) for word in words)

    def entrypoint(self) -> list[str]:
        """The command in its exec form."""
        [arguments] = self.all("ENTRYPOINT")
        command: list[str] = json.loads(arguments)
        return command

    def extras(self) -> list[str]:
        """The extras of the project that it installs."""
        return [extra for run in self.all("RUN") for found in _EXTRAS.findall(run) for extra in found.split(",")]


def stages() -> dict[str, Stage]:
    """The stages of Dockerfile by name."""
    found: list[tuple[str, str, list[tuple[str, str]]]] = []
    for word, arguments in _steps((ROOT / "Dockerfile").read_text(encoding="utf-8")):
        if word == "FROM":
            base, _, name = arguments.partition(" AS ")
            found.append((name, base, []))
        elif found:
            found[-1][2].append((word, arguments))
    return {name: Stage(name, base, tuple(steps)) for name, base, steps in found}


def context() -> list[str]:
    """What .dockerignore lets into a build: files and folders, relative to the root. It is a list of these alone."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    ruled = [line for line in lines if line and not line.startswith("#")]
    assert ruled[0] == "*", ".dockerignore must begin by leaving everything out"
    assert ruled[-1] == "**/__pycache__", ".dockerignore must end by leaving compiled Python out"
    assert all(line.startswith("!") for line in ruled[1:-1]), ".dockerignore must name, in between, what it lets in"
    return [line[1:] for line in ruled[1:-1]]


def context_files() -> list[Path]:
    """The same as files, sorted, relative to the root."""
    found = [file for name in context() for file in _files(ROOT / name)]
    return sorted(file.relative_to(ROOT) for file in found if "__pycache__" not in file.parts)


def _files(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]


def _steps(text: str) -> Iterator[tuple[str, str]]:
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for step in "\n".join(lines).replace("\\\n", " ").splitlines():
        if step.strip():
            word, _, arguments = step.strip().partition(" ")
            yield word, " ".join(arguments.split())
