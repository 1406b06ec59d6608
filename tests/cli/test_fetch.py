"""`v4serve fetch` as a process, with a fake hub: broken connections, wrong content, wrong names."""

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.hub_server import COMMIT, Hub

WEIGHTS = random.Random(1).randbytes(40 << 20)
FILES = {
    "config.json": b'{"model_type": "deepseek_v4"}',
    "model-00001-of-00001.safetensors": WEIGHTS,
    "tokenizer.json": b"{}",
    "pytorch_model.bin": b"never to be fetched",
}
MARKER = ".v4serve-complete.json"
WANTED = sorted(FILES.keys() - {"pytorch_model.bin"})


def fetch(hub: Hub, into: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HF_ENDPOINT": hub.address, "HF_HOME": str(into.parent / "home"), "NO_PROXY": "*"}
    command = [sys.executable, "-m", "v4_cli.main", "fetch", "--repository", "acme/model", "--into", str(into)]
    return subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def fetched(into: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in into.iterdir() if path.is_file() and path.name[0] != "."}


def test_a_checkpoint_is_downloaded_completely_and_only_once(tmp_path: Path) -> None:
    with Hub("acme/model", FILES) as hub:
        first = fetch(hub, tmp_path / "m")
        assert first.returncode == 0, first.stderr
        assert "/resolve/" not in first.stderr, "addresses, which may be signed, are not logged"
        assert fetched(tmp_path / "m") == {name: FILES[name] for name in WANTED}
        marker = json.loads((tmp_path / "m" / MARKER).read_text())
        assert (marker["repository"], marker["revision"], marker["commit"]) == ("acme/model", "main", COMMIT)
        assert marker["files"] == {name: len(FILES[name]) for name in WANTED}
        hub.ranges.clear()
        again = fetch(hub, tmp_path / "m")
        assert again.returncode == 0
        assert hub.ranges == []
        assert "already complete" in again.stderr


def test_a_complete_checkpoint_ignores_new_commits_but_follows_another_revision(tmp_path: Path) -> None:
    into, small = tmp_path / "m", {"config.json": b"{}", "model.safetensors": b"first"}
    with Hub("acme/model", small) as hub:
        assert fetch(hub, into).returncode == 0
    with Hub("acme/model", {**small, "model.safetensors": b"second one"}) as hub:
        assert fetch(hub, into).returncode == 0
        assert fetched(into) == small, "workers may be reading it"
        (into / "config.json").unlink()
        assert fetch(hub, into).returncode == 0, "what is no longer whole is fetched again"
        assert fetched(into)["model.safetensors"] == b"second one"
    with Hub("acme/model", small) as hub:
        assert fetch(hub, into, "--revision", COMMIT).returncode == 0
        assert fetched(into) == small


@pytest.mark.parametrize("marker", ["", "[]", "{}", '{"repository": "acme/model", "commit": "c"}'])
def test_an_incomplete_marker_is_ignored(tmp_path: Path, marker: str) -> None:
    into = tmp_path / "m"
    into.mkdir()
    (into / MARKER).write_text(marker)
    with Hub("acme/model", {"config.json": b"{}", "model.safetensors": b"x"}) as hub:
        assert fetch(hub, into).returncode == 0
    assert (into / "model.safetensors").exists()


def test_a_download_resumes_after_a_broken_connection(tmp_path: Path) -> None:
    name = "model-00001-of-00001.safetensors"
    with Hub("acme/model", FILES, cut_after={name: 25 << 20}) as hub:
        done = fetch(hub, tmp_path / "m")
        assert done.returncode == 0, done.stderr
        assert fetched(tmp_path / "m")[name] == WEIGHTS
        asked = [value for file, value in hub.ranges if file == name]
        assert len(asked) == 2
        assert int(asked[1].removeprefix("bytes=").rstrip("-")) > 0  # resumed, not started again


def test_wrong_bytes_are_fetched_again(tmp_path: Path) -> None:
    name = "model-00001-of-00001.safetensors"
    with Hub("acme/model", FILES, damaged=Counter({name: 1, "config.json": 1})) as hub:
        done = fetch(hub, tmp_path / "m")
        assert done.returncode == 0, done.stderr
        assert fetched(tmp_path / "m") == {file: FILES[file] for file in WANTED}
        assert f"{name} does not have the hash that the repository states" in done.stderr


def test_content_that_stays_wrong_is_never_marked_complete(tmp_path: Path) -> None:
    with Hub("acme/model", FILES, damaged=Counter({"config.json": 9})) as hub:
        done = fetch(hub, tmp_path / "m")
    assert done.returncode == 1
    assert "error: config.json: the content does not have the hash" in done.stderr
    assert not (tmp_path / "m" / MARKER).exists()
    assert not (tmp_path / "m" / "config.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repository", "acme/other"), "does not exist or is private"),
        (("--revision", "v9"), "has no revision 'v9'"),
        (("--repository", "not a name"), "is not the name of a repository: give OWNER/NAME"),
    ],
)
def test_a_repository_or_revision_that_does_not_exist_is_one_line(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    with Hub("acme/model", FILES) as hub:
        done = fetch(hub, tmp_path / "m", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["nowhere", "ftp://nowhere"])
def test_an_address_that_cannot_be_a_hubs_is_one_line_at_once(tmp_path: Path, address: str) -> None:
    with Hub("acme/model", FILES) as hub:
        hub.address = address
        done = fetch(hub, tmp_path / "m")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "is not an http:// or https:// address" in done.stderr
    assert "HF_ENDPOINT" in done.stderr


def test_another_server_than_a_hub_is_one_line(tmp_path: Path) -> None:
    with Hub("acme/model", FILES, page=b"<html>Log in</html>") as hub:
        done = fetch(hub, tmp_path / "m")
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert "is not that of a Hugging Face hub: set HF_ENDPOINT" in done.stderr


def test_a_repository_without_safetensors_is_refused(tmp_path: Path) -> None:
    with Hub("acme/model", {"config.json": b"{}", "pytorch_model.bin": b"x"}) as hub:
        done = fetch(hub, tmp_path / "m")
    assert done.returncode == 2
    assert "has no .safetensors file" in done.stderr


def test_a_file_outside_the_folder_is_refused(tmp_path: Path) -> None:
    with Hub("acme/model", {**FILES, "../../evil.json": b"{}"}) as hub:
        done = fetch(hub, tmp_path / "m")
    assert done.returncode == 2
    assert "would be written outside the folder" in done.stderr


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "m").write_text("")
    with Hub("acme/model", FILES) as hub:
        done = fetch(hub, tmp_path / "m")
    assert done.returncode == 2
    assert "cannot write to" in done.stderr
