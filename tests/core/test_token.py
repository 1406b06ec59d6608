"""The component token's file: what is accepted, what is shown, and how it changes."""

import logging
import os
from pathlib import Path

import pytest

from v4_core.errors import ConfigError
from v4_core.token import TokenFile, metadata


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with a token, as `kubectl` and editors leave it."""
    path = tmp_path / "token"
    path.write_text(" secret-1\n")
    return path


def test_the_token_is_shown_and_accepted(file: Path) -> None:
    token = TokenFile(file)
    assert token.current() == "secret-1"
    assert metadata(token) == (("authorization", "Bearer secret-1"),)
    assert token.accepts(metadata(token)[0][1])
    assert metadata(None) == ()


@pytest.mark.parametrize(
    "shown", ["", "secret-1", "Bearer", "Bearer ", "Bearer secret-", "Bearer secret-11", "Bearer é"]
)
def test_anything_else_is_not_accepted(file: Path, shown: str) -> None:
    assert not TokenFile(file).accepts(shown)


def test_a_change_of_the_file_is_seen(file: Path) -> None:
    token = TokenFile(file)
    file.write_text("secret-02")
    assert token.current() == "secret-02"
    assert not token.accepts("Bearer secret-1")


def test_a_swapped_link_is_seen(tmp_path: Path) -> None:
    """A mounted Secret changes by its folder's link, with names and sizes as before."""
    for number in "12":
        (tmp_path / number).mkdir()
        (tmp_path / number / "token").write_text(f"secret-{number}")
    os.symlink(tmp_path / "1", tmp_path / "data")
    token = TokenFile(tmp_path / "data" / "token")
    os.symlink(tmp_path / "2", tmp_path / "next")
    os.replace(tmp_path / "next", tmp_path / "data")
    assert token.current() == "secret-2"


def test_a_file_that_becomes_unusable_keeps_the_token_and_says_so(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    token = TokenFile(file)
    with caplog.at_level(logging.WARNING):
        file.write_text("")
        assert token.current() == token.current() == "secret-1"
        assert len(caplog.records) == 1
        file.unlink()
        assert token.accepts("Bearer secret-1")
    assert [str(file) in record.getMessage() for record in caplog.records] == [True, True]
    file.write_text("secret-3")
    assert token.current() == "secret-3"


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"two\nlines", b"\xff\xfe", "schlüssel".encode()])
def test_what_is_no_token_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match=f"token_file {file}"):
        TokenFile(file)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        TokenFile(tmp_path / "nowhere")
