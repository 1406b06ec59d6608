"""Compiled operators of an image are copied to a writable folder and used; without them a process only starts
slower."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from v4_engine.kernels.compiler import copy_compiled

_RUN_ONE = """
import torch
from v4_engine.kernels import cpu
cpu.swiglu(torch.ones(1, 4), 1.0)
print(sum(cpu._swiglu.stats.cache_hits.values()), sum(cpu._swiglu.stats.cache_misses.values()))
"""


@pytest.fixture
def carried(tmp_path: Path) -> Path:
    """A folder of compiled operators, as an image has it."""
    folder = tmp_path / "carried"
    (folder / "kernels").mkdir(parents=True)
    (folder / "kernels" / "a.nbc").write_text("a")
    return folder


def files(folder: Path) -> list[str]:
    """Return the relative paths of all files in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_copy_is_made_once(carried: Path, tmp_path: Path) -> None:
    place = tmp_path / "deep" / "place"
    copy_compiled(carried, place)
    assert files(place) == ["kernels/a.nbc"]
    (place / "kernels" / "own.nbc").write_text("compiled here")
    (carried / "kernels" / "late.nbc").write_text("late")
    copy_compiled(carried, place)
    assert files(place) == ["kernels/a.nbc", "kernels/own.nbc"]


def test_many_at_once_make_one_copy(carried: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    place = tmp_path / "there" / "place"
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: copy_compiled(carried, place), range(32)))
    assert files(tmp_path / "there") == ["place/kernels/a.nbc"]
    assert not caplog.records


def test_a_failed_copy_is_logged_and_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    copy_compiled(tmp_path / "absent", tmp_path / "there" / "place")
    assert "so they are compiled again" in caplog.text
    assert files(tmp_path) == []
    assert not (tmp_path / "there" / "place").exists()


def test_a_process_uses_the_images_operators(tmp_path: Path) -> None:
    image, place = tmp_path / "image", tmp_path / "place"
    counts = []
    for variables in ({"NUMBA_CACHE_DIR": str(image)}, {"V4SERVE_COMPILED": str(image), "NUMBA_CACHE_DIR": str(place)}):
        command = [sys.executable, "-c", _RUN_ONE]
        counts.append(subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True))
    assert [count.stdout.split() for count in counts] == [["0", "1"], ["1", "0"]]
    assert files(place) == files(image)
