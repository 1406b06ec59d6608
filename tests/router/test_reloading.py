"""Files that change under a running process."""

import asyncio
import logging
from pathlib import Path

import pytest

from tests.router.conftest import until
from v4_core.errors import ConfigError
from v4_router.policy import Policy, read_policy
from v4_router.reloading import Reloaded


@pytest.fixture
def mounted(tmp_path: Path) -> Path:
    """A file as kubelet mounts it: a link through a folder that is swapped."""
    swap(tmp_path, "one", "max_requests: 1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    return tmp_path / "policy.yaml"


def swap(folder: Path, version: str, text: str) -> None:
    (folder / version).mkdir()
    (folder / version / "policy.yaml").write_text(text)
    (folder / "..new").symlink_to(version)
    (folder / "..new").rename(folder / "..data")


def test_new_content_is_told_of_and_old_content_is_not(mounted: Path) -> None:
    told: list[Policy] = []
    file = Reloaded(mounted, read_policy, told.append)
    file.look()
    assert (file.current.max_requests, told) == (1, [])
    swap(mounted.parent, "two", "max_requests: 2")
    file.look()
    file.look()
    assert told == [file.current] == [Policy(max_requests=2)]


def test_broken_content_changes_nothing_and_is_logged_once(mounted: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = Reloaded(mounted, read_policy)
    swap(mounted.parent, "two", "max_request: 2")
    with caplog.at_level(logging.ERROR):
        file.look()
        file.look()
    (record,) = caplog.records
    assert "did you mean 'max_requests'" in record.getMessage()
    assert "holds on" in record.getMessage()
    mounted.unlink()
    file.look()
    assert file.current.max_requests == 1
    mounted.write_text("max_requests: 3")
    file.look()
    assert file.current.max_requests == 3


async def test_it_is_followed(mounted: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("v4_router.reloading._POLL_SECONDS", 0.01)
    file = Reloaded(mounted, read_policy)
    following = asyncio.create_task(file.follow())
    swap(mounted.parent, "two", "max_requests: 2")
    await until(lambda: file.current.max_requests == 2, "the change is seen")
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("request_timeout_seconds: 0", "request_timeout_seconds must be greater than 0"),
        ("max_requests: -1", "max_requests must not be negative"),
        ("without_prefill: never", "without_prefill is 'never'; choose one of serve, refuse"),
        ("on_transfer_failure: retry", "choose one of recompute, fail"),
    ],
)
def test_a_policy_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "policy.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Reloaded(file, read_policy)
