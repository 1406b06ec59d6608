"""API keys in their file."""

from pathlib import Path

import pytest

from v4_core.errors import ConfigError
from v4_router.keys import Keys, read_keys


def test_a_key_has_its_tenant() -> None:
    keys = Keys({"one": "alice", "two": "bob", "three": "alice"})
    assert [keys.tenant(k) for k in (b"one", b"two", b"three")] == ["alice", "bob", "alice"]
    assert [keys.tenant(k) for k in (b"", b"on", b"one ", b"ONE", b"\xff")] == [None] * 5


def test_what_is_kept_is_no_key() -> None:
    keys = Keys({"one-secret-key": "alice"})
    assert b"one-secret-key" not in repr(vars(keys)).encode()
    assert vars(keys)["_tenants"] != vars(Keys({"one-secret-key": "alice"}))["_tenants"], "a secret of each process"


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("sk-1: alice\n'123': bob\n")
    keys = read_keys(file)
    assert (keys.tenant(b"sk-1"), keys.tenant(b"123")) == ("alice", "bob")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one line"),
        ("{}", "at least one line"),
        ("- sk-secret", "at least one line"),
        ("sk-secret", "at least one line"),
        ("ok: alice\nsk-secret: [alice", "line 2 is no YAML"),
        ("*sk-secret : alice", "line 1 is no YAML"),
        ("!sk-secret x: y", "is no YAML"),
        ("sk-secret:", "entry 1: the tenant must be a name"),
        ("ok: alice\nsk-secret: 7", "entry 2: the tenant must be a name"),
        ("ok: alice\nsk-secret: alice\nsk-secret: bob", "line 3 repeats a key"),
        ("ok: alice\n0x_: secret", "its content is no YAML"),
        ("2001-99-99: secret", "its content is no YAML"),
        ("[" * 5000, "its content is no YAML"),
        (r'sk-secret: "\ud800"', "entry 1: the tenant must be a name"),
        (r'sk-secret: "a\nb"', "entry 1: the tenant must be a name"),
        ("sk-secret: ''", "the tenant must be a name"),
        ("123456: alice", "entry 1: the key is no text"),
        ("'sk secret': alice", "entry 1: a key is one word"),
        ("'': alice", "a key is one word"),
        ("sk-sécret: alice", "a key is one word"),
    ],
)
def test_refused_without_telling_the_key(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_keys(file)
    told = str(caught.value)
    assert message in told
    assert str(file) in told
    assert not any(part in told for part in ("secret", "123456", "sécret"))


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none.yaml")
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "binary.yaml")
