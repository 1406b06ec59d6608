import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from tests.tiny_config import CONFIG
from v4_core.errors import ConfigError
from v4_core.fingerprint import TensorDigest, difference, fingerprint, tokenizer_digest
from v4_core.geometry import CacheGeometry

GEOMETRY = CacheGeometry(CONFIG, "bf16", "bf16")
CHOICES = {"hadamard": "off", "round": "made"}
TENSORS = {
    "embed.weight": TensorDigest("bfloat16", (512, 64), b"1" * 16),
    "norm.weight": TensorDigest("float32", (64,), b"2" * 16),
}


def of(tensors: Mapping[str, TensorDigest] = TENSORS) -> str:
    return fingerprint(CONFIG, GEOMETRY, CHOICES, tensors)


def test_it_is_one_line_of_facts_and_repeatable() -> None:
    facts = dict(fact.split("=") for fact in of().split(" "))
    assert list(facts) == ["weights", "config", "layout", "engine", "eos_token_id"]
    assert all(len(facts[name]) == 32 and int(facts[name], 16) for name in list(facts)[:-1])
    assert facts["eos_token_id"] == "1"
    assert of() == of()


def test_the_order_in_which_tensors_were_read_does_not_matter() -> None:
    assert of(dict(reversed(TENSORS.items()))) == of()


@pytest.mark.parametrize(
    "changed",
    [
        {"norm.weight": TensorDigest("float32", (64,), b"2" * 15 + b"3")},
        {"norm.weight": TensorDigest("bfloat16", (64,), b"2" * 16)},
        {"norm.weight": TensorDigest("float32", (8, 8), b"2" * 16)},
        {"norm.weight": TENSORS["embed.weight"], "embed.weight": TENSORS["norm.weight"]},
        {"head.weight": TENSORS["norm.weight"]},
    ],
)
def test_tensors_that_differ(changed: dict[str, TensorDigest]) -> None:
    other = of(TENSORS | changed)
    assert re.fullmatch(r"weights \(\w{32} here, \w{32} there\)", difference(of(), other))


def test_a_difference_tells_the_facts_and_both_values() -> None:
    other = fingerprint(replace(CONFIG, eos_token_ids=(1, 5)), GEOMETRY, CHOICES, TENSORS)
    assert difference(of(), other) == "eos_token_id (1 here, 1,5 there)"
    other = fingerprint(replace(CONFIG, swiglu_limit=7.0), GEOMETRY, {**CHOICES, "hadamard": "on"}, TENSORS)
    told = re.fullmatch(
        r"config \(\w{32} here, \w{32} there\), engine \(\w{32} here, \w{32} there\)", difference(of(), other)
    )
    assert told is not None


@pytest.mark.parametrize("other", ["", "0" * 32, "weights=1", "a=1 b=2 = x=="])
def test_a_fingerprint_of_another_release_is_told_whole(other: str) -> None:
    assert difference(of(), other) == f"fingerprint ({of()} here, {other} there)"


def test_what_changes_stored_values_counts_and_limits_do_not() -> None:
    def variant(config: dict[str, object] | None = None, geometry: CacheGeometry = GEOMETRY, **choices: str) -> str:
        changed = replace(CONFIG, **(config or {}))  # type: ignore[arg-type]
        return fingerprint(changed, geometry, {**CHOICES, **choices}, TENSORS)

    base = of()
    different = [
        variant({"rope_theta": 5e4}),
        variant({"swiglu_limit": 7.0}),
        variant({"yarn": None}),
        variant({"eos_token_ids": (1, 2)}),
        variant(geometry=replace(GEOMETRY, storage="fp32")),
        variant(geometry=replace(GEOMETRY, index="fp32")),
        variant(geometry=replace(GEOMETRY, draft_layers=1)),
        variant(hadamard="on"),
        variant(compute="fp32"),
    ]
    assert len({base, *different}) == 1 + len(different)
    assert variant({"max_position": 8192}) == base
    assert variant({"quantised": True, "dtype": "fp32"}) == base, "the tensors say so themselves"
    assert variant(geometry=replace(GEOMETRY, slack=5)) == base
    assert fingerprint(CONFIG, GEOMETRY, dict(reversed(CHOICES.items())), TENSORS) == base


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
