"""Encoding of texts: special tokens by name, their names in a text as text, and the segment cache."""

import json
from pathlib import Path

import pytest

from tests.router.tokenizers import SPECIALS, build_tokenizer
from v4_core.blocks import pack_ids, unpack_ids
from v4_core.errors import ConfigError
from v4_router.chat import ASSISTANT, BOS, EOS, MARKERS, THINK, THINK_END, USER, Message, Segment, Special, encode_chat
from v4_router.tokenizer import SegmentCache, Tokenizer


@pytest.fixture(scope="module")
def tokenizer(model_path: Path) -> Tokenizer:
    return Tokenizer(model_path, 1 << 20)


async def test_golden_form_of_a_thinking_turn(tokenizer: Tokenizer) -> None:
    """In a turn of a thinking chat, every marker is a single token."""
    plain = build_tokenizer()

    def text(content: str) -> list[int]:
        return list(plain.encode(content, add_special_tokens=False).ids)

    turns = [Message("user", "你好"), Message("assistant", "答案", "推理"), Message("system", "the cat")]
    ids = unpack_ids(await tokenizer.encode_segments(encode_chat(turns, "thinking")))
    special = tokenizer.special
    assert ids == [
        *[special(BOS), special(USER), *text("你好"), special(ASSISTANT), special(THINK), *text("推理")],
        *[special(THINK_END), *text("答案"), special(EOS), *text("the cat"), special(ASSISTANT), special(THINK)],
    ]


async def test_marker_strings_in_content_are_text(tokenizer: Tokenizer) -> None:
    specials = {tokenizer.special(name) for name in SPECIALS}
    for name in SPECIALS:
        packed = await tokenizer.encode_segments([f"a{name}b{name}{name}"])
        assert not specials & set(unpack_ids(packed))
        assert b"".join(tokenizer.token_bytes[i] for i in unpack_ids(packed)).decode() == f"a{name}b{name}{name}"


async def test_raw_prompts_know_markers_and_begin_with_bos(tokenizer: Tokenizer) -> None:
    with_bos = await tokenizer.encode_raw(f"{BOS}the cat{USER}")
    assert await tokenizer.encode_raw(f"the cat{USER}") == with_bos
    ids = unpack_ids(with_bos)
    assert (ids[0], ids[-1], ids.count(tokenizer.special(BOS))) == (tokenizer.special(BOS), tokenizer.special(USER), 1)


async def test_cached_segments_give_the_same_ids(model_path: Path) -> None:
    segments: list[Segment] = [Special(BOS), "the cat sat", Special(USER), "the cat sat", Special(EOS), "on the mat"]
    cached = Tokenizer(model_path, 1 << 20)
    first = await cached.encode_segments(segments)
    assert await cached.encode_segments(segments) == first
    assert await Tokenizer(model_path, 0).encode_segments(segments) == first
    cached.close()


def test_the_cache_is_bounded_in_bytes_and_forgets_the_oldest() -> None:
    cache = SegmentCache(3 * 700)
    texts = [letter * 300 for letter in "abcd"]
    for text in texts[:3]:
        cache.put(text, pack_ids([1]))
    assert cache.get(texts[0]) is not None
    cache.put(texts[3], pack_ids([1]))
    assert [cache.get(text) is not None for text in texts] == [True, False, True, True]
    cache.put("e" * 10_000, pack_ids([1]))
    assert cache.get("e" * 10_000) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(added_tokens=[t for t in data["added_tokens"] if t["content"] != USER]), "lacks"),
        (lambda data: data.update(decoder=None), "byte-level"),
        (lambda data: data["model"].update(type="WordPiece"), "BPE"),
        (lambda data: data["model"]["merges"].extend(_spelling(data, THINK)), "produce"),
    ],
)
def test_unusable_tokenizers_are_refused(tmp_path: Path, change, message: str) -> None:  # type: ignore[no-untyped-def]
    data = json.loads(build_tokenizer().to_str())
    change(data)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(ConfigError, match=message):
        Tokenizer(tmp_path, 0)


def _spelling(data: dict, name: str) -> list[list[str]]:  # type: ignore[type-arg]
    """Returns merges that build the marker from its letters, and adds the vocabulary entries that they need."""
    data["pre_tokenizer"] = {**data["pre_tokenizer"], "use_regex": False}
    vocab = data["model"]["vocab"]
    merges = []
    for end in range(1, len(name)):
        vocab.setdefault(name[: end + 1], len(vocab))
        merges.append([name[:end], name[end]])
    data["model"]["merges"][:0] = merges
    return []


def test_a_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json does not exist"):
        Tokenizer(tmp_path, 0)


def test_markers_are_found_by_name(tokenizer: Tokenizer) -> None:
    assert len({tokenizer.special(name) for name in MARKERS}) == len(MARKERS)
