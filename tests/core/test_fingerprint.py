import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_config import CONFIG
from v4_core.errors import ConfigError
from v4_core.fingerprint import SAMPLE_BYTES, fingerprint, tokenizer_digest
from v4_core.geometry import CacheGeometry

GEOMETRY = CacheGeometry(CONFIG, "bf16", "bf16")
CHOICES = {"hadamard": "off", "round": "made"}
SIZE = 8 * SAMPLE_BYTES


def shard(path: Path, fill: int = 1, size: int = SIZE, shape: Sequence[int] = (2, 2)) -> Path:
    """A file laid out as safetensors lays it out; the data are `size` equal bytes."""
    header = json.dumps({"w": {"dtype": "BF16", "shape": shape, "data_offsets": [0, size]}}).encode()
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes([fill]) * size)
    return path


def of(*files: Path) -> str:
    return fingerprint(CONFIG, GEOMETRY, CHOICES, files)


@pytest.fixture
def shards(tmp_path: Path) -> list[Path]:
    return [shard(tmp_path / "a" / f"model-{i}.safetensors", fill=i) for i in range(3)]


def test_it_is_hex_and_repeatable(shards: list[Path]) -> None:
    assert len(of(*shards)) == 32
    assert int(of(*shards), 16)
    assert of(*shards) == of(*shards)


def test_neither_the_order_nor_the_folder_matters(shards: list[Path], tmp_path: Path) -> None:
    before = of(*shards)
    assert of(*reversed(shards)) == before
    moved = (tmp_path / "a").rename(tmp_path / "b")
    assert of(*sorted(moved.iterdir())) == before


@pytest.mark.parametrize("place", [0, SIZE // 2, SIZE - 1])
def test_same_shaped_weights_that_differ_at_start_middle_or_end(shards: list[Path], place: int) -> None:
    before = of(*shards)
    data = bytearray(shards[1].read_bytes())
    data[len(data) - SIZE + place] ^= 1
    shards[1].write_bytes(data)
    assert of(*shards) != before


def test_names_sizes_headers_and_numbers_of_shards_count(shards: list[Path], tmp_path: Path) -> None:
    seen = {of(*shards), of(*shards[:2]), of()}
    seen.add(of(*shards[:2], shards[2].rename(tmp_path / "a" / "other.safetensors")))
    seen.add(of(*shards[:2], shard(shards[2], fill=2, shape=(4, 1))))
    seen.add(of(*shards[:2], shard(shards[2], fill=2, size=SIZE + 1)))
    assert len(seen) == 6


def test_two_shards_that_swap_their_contents(shards: list[Path]) -> None:
    before = of(*shards)
    first, second = shards[0].read_bytes(), shards[1].read_bytes()
    shards[0].write_bytes(second)
    shards[1].write_bytes(first)
    assert of(*shards) != before


def test_a_shard_smaller_than_a_sample(tmp_path: Path) -> None:
    small = shard(tmp_path / "s" / "model.safetensors", size=10)
    before = of(small)
    shard(small, fill=2, size=10)
    assert of(small) != before


def test_what_changes_stored_values_counts_and_limits_do_not(shards: list[Path]) -> None:
    def variant(config: dict[str, object] | None = None, geometry: CacheGeometry = GEOMETRY, **choices: str) -> str:
        changed = replace(CONFIG, **(config or {}))  # type: ignore[arg-type]
        return fingerprint(changed, geometry, {**CHOICES, **choices}, shards)

    base = of(*shards)
    different = [
        variant({"rope_theta": 5e4}),
        variant({"swiglu_limit": 7.0}),
        variant({"yarn": None}),
        variant(geometry=replace(GEOMETRY, storage="fp32")),
        variant(geometry=replace(GEOMETRY, index="fp32")),
        variant(geometry=replace(GEOMETRY, draft_layers=1)),
        variant(hadamard="on"),
        variant(compute="fp32"),
    ]
    assert len({base, *different}) == 1 + len(different)
    assert variant({"max_position": 8192}) == base
    assert variant(geometry=replace(GEOMETRY, slack=5)) == base
    assert fingerprint(CONFIG, GEOMETRY, dict(reversed(CHOICES.items())), shards) == base


@pytest.mark.parametrize("content", [b"", b"1234", (1 << 40).to_bytes(8, "little") + b"{}"])
def test_a_truncated_shard_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.safetensors"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="is no complete safetensors file: download it again"):
        of(file)


def test_a_missing_shard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*gone.safetensors: No such file"):
        of(tmp_path / "gone.safetensors")


def test_tokenizers_are_told_apart_by_their_files(tmp_path: Path) -> None:
    assert tokenizer_digest(tmp_path) == ""
    seen = set()
    for text in ("{}", "{ }"):
        (tmp_path / "tokenizer.json").write_text(text)
        seen.add(tokenizer_digest(tmp_path))
    assert len(seen) == 2
    assert "" not in seen


def test_a_tokenizer_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").mkdir()
    with pytest.raises(ConfigError, match=r"tokenizer\.json"):
        tokenizer_digest(tmp_path)
