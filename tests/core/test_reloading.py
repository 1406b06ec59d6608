"""Files that change under a running process."""

import asyncio
import logging
import os
import threading
from pathlib import Path

import pytest

from v4_core.errors import ConfigError
from v4_core.reloading import Reloaded


def number(file: Path) -> int:
    """A whole number in a file, as a reader of settings behaves."""
    try:
        return int(file.read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file}: {error}") from None


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """A file as kubelet mounts it: a link through a folder that is swapped."""
    swap(tmp_path, "one", "1")
    (tmp_path / "number").symlink_to("..data/number")
    return tmp_path / "number"


def swap(folder: Path, version: str, text: str) -> None:
    (folder / version).mkdir()
    (folder / version / "number").write_text(text)
    (folder / "..new").symlink_to(version)
    (folder / "..new").rename(folder / "..data")


def test_new_content_is_told_of_and_old_content_is_not(mounted: Path) -> None:
    told: list[int] = []
    file = Reloaded(mounted, number, told.append)
    file.reload_if_changed()
    assert (file.current, told) == (1, [])
    swap(mounted.parent, "two", "2")
    file.reload_if_changed()
    file.reload_if_changed()
    assert told == [file.current] == [2]


def test_broken_content_changes_nothing_and_is_logged_once(mounted: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = Reloaded(mounted, number)
    swap(mounted.parent, "two", "two")
    with caplog.at_level(logging.ERROR):
        file.reload_if_changed()
        file.reload_if_changed()
    (record,) = caplog.records
    assert "'two'" in record.getMessage()
    assert "stays in effect" in record.getMessage()
    mounted.unlink()
    file.reload_if_changed()
    assert file.current == 1
    mounted.write_text("3")
    file.reload_if_changed()
    assert file.current == 3


def test_a_change_of_rights_alone_is_one(mounted: Path) -> None:
    """Content that could not be read is read once it can be."""
    readable = False

    def read(path: Path) -> int:
        if not readable:
            raise ConfigError("not readable")
        return number(path)

    readable = True
    file = Reloaded(mounted, read)
    readable = False
    swap(mounted.parent, "two", "2")
    file.reload_if_changed()
    assert file.current == 1
    readable = True
    before = os.stat(mounted).st_ctime_ns
    while os.stat(mounted).st_ctime_ns == before:  # the clock of file systems is coarse
        mounted.chmod(0o600)
        mounted.chmod(0o644)
    file.reload_if_changed()
    assert file.current == 2


def test_a_change_while_it_is_read_first_is_seen(mounted: Path) -> None:
    def read(path: Path) -> int:
        found = number(path)
        if found == 1:
            swap(mounted.parent, "two", "2")
        return found

    file = Reloaded(mounted, read)
    file.reload_if_changed()
    assert file.current == 2


async def test_it_is_followed_without_holding_up_the_loop(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_core.reloading._POLL_SECONDS", 0.01)
    loop = asyncio.get_running_loop()
    reading, changed, go_on = asyncio.Event(), asyncio.Event(), threading.Event()

    def read(path: Path) -> int:
        if number(path) == 2:
            loop.call_soon_threadsafe(reading.set)
            assert go_on.wait(30)
        return number(path)

    file = Reloaded(mounted, read, lambda _: changed.set())
    following = asyncio.create_task(file.follow())
    swap(mounted.parent, "two", "2")
    async with asyncio.timeout(30):
        await reading.wait()
        assert file.current == 1
        go_on.set()
        await changed.wait()
    assert file.current == 2
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


def test_what_cannot_be_used_at_first_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        Reloaded(tmp_path / "none", number)
