"""API keys: their file, and their validity after a change."""

from pathlib import Path

import pytest

from v4_core.errors import ConfigError
from v4_router.keys import KeyRing, Keys, read_keys


def test_a_key_has_its_tenant() -> None:
    keys = Keys({"one": "alice", "two": "bob", "three": "alice"})
    assert [keys.tenant(k) for k in (b"one", b"two", b"three")] == ["alice", "bob", "alice"]
    assert [keys.tenant(k) for k in (b"", b"on", b"one ", b"ONE", b"\xff")] == [None] * 5


def test_no_key_is_kept_in_clear() -> None:
    keys = Keys({"one-secret-key": "alice"})
    assert b"one-secret-key" not in repr(vars(keys)).encode()
    assert vars(keys)["_tenants"] != vars(Keys({"one-secret-key": "alice"}))["_tenants"], "a secret of each process"


class Ring:
    """A key ring with a clock that the test sets."""

    def __init__(self, overlap: float) -> None:
        self.now, self.overlap = 1000.0, overlap
        self.keys = KeyRing(Keys({"one": "alice", "both": "alice"}), lambda: self.overlap, lambda: self.now)

    def good(self) -> dict[str, str]:
        """Returns the tenants of the keys that are valid now."""
        found = {key: self.keys.tenant(key.encode()) for key in ("one", "both", "two", "three")}
        return {key: tenant for key, tenant in found.items() if tenant}


def test_a_removed_key_is_valid_for_the_overlap() -> None:
    ring = Ring(60.0)
    assert ring.good() == {"one": "alice", "both": "alice"}
    ring.keys.replace(Keys({"both": "bob", "two": "bob"}))
    assert ring.good() == {"one": "alice", "both": "bob", "two": "bob"}, "the file's word is the first"
    ring.now += 40.0
    ring.keys.replace(Keys({"three": "carol"}))
    assert ring.good() == {"one": "alice", "both": "bob", "two": "bob", "three": "carol"}
    ring.now += 20.0
    assert ring.good() == {"both": "bob", "two": "bob", "three": "carol"}
    ring.now += 40.0
    assert ring.good() == {"three": "carol"}


def test_an_overlap_of_0_revokes_at_once() -> None:
    """It also revokes keys that were removed before it was set; a key that is added again is valid again."""
    ring = Ring(60.0)
    ring.keys.replace(Keys({"two": "bob"}))
    ring.overlap = 0.0
    assert ring.good() == {"two": "bob"}
    ring.keys.replace(Keys({"one": "bob"}))
    assert ring.good() == {"one": "bob"}
    ring.overlap = 60.0
    ring.now += 1.0
    assert ring.good() == {"one": "bob"}, "what was refused once stays so"


def test_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys.yaml"
    file.write_text("sk-1: alice\n'123': bob\n")
    keys = read_keys(file)
    assert (keys.tenant(b"sk-1"), keys.tenant(b"123")) == ("alice", "bob")
    assert keys.written is not None
    assert keys.written.timestamp() == pytest.approx(file.stat().st_mtime, abs=0.01)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "at least one line"),
        ("{}", "at least one line"),
        ("- sk-secret", "at least one line"),
        ("sk-secret", "at least one line"),
        ("ok: alice\nsk-secret: [alice", "line 2 is not valid YAML"),
        ("*sk-secret : alice", "line 1 is not valid YAML"),
        ("!sk-secret x: y", "is not valid YAML"),
        ("sk-secret:", "entry 1: the tenant must be a non-empty"),
        ("ok: alice\nsk-secret: 7", "entry 2: the tenant must be a non-empty"),
        ("ok: alice\nsk-secret: alice\nsk-secret: bob", "line 3 repeats a key"),
        ("ok: alice\n0x_: secret", "its content is not valid YAML"),
        ("2001-99-99: secret", "its content is not valid YAML"),
        ("[" * 5000, "its content is not valid YAML"),
        (r'sk-secret: "\ud800"', "entry 1: the tenant must be a non-empty"),
        (r'sk-secret: "a\nb"', "entry 1: the tenant must be a non-empty"),
        ("sk-secret: ''", "the tenant must be a non-empty"),
        ("123456: alice", "entry 1: the key is not a string"),
        ("'sk secret': alice", "entry 1: the key must be printable ASCII"),
        ("'': alice", "the key must be printable ASCII"),
        ("sk-sécret: alice", "the key must be printable ASCII"),
    ],
)
def test_refused_without_showing_the_key(tmp_path: Path, text: str, message: str) -> None:
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
