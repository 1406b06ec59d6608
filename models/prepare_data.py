"""Make the training text and the tokenizer of the demo model.

The text is eight public-domain works. This script knows where they are inside their packages and how each is formatted.
The packages are only unpacked, never installed:

    apt-get download r-cran-janeaustenr=1.0.0-1 golang-github-klauspost-compress-dev=1.15.12+ds1-3
    for deb in *.deb; do dpkg -x "$deb" raw; done
    pip download --no-deps --no-binary :all: brotli==1.1.0 && tar xzf Brotli-1.1.0.tar.gz -C raw
    python prepare_data.py --raw raw --out work

Writes work/corpus.json ({"train" | "heldout": [work][paragraph][sentence]}) and work/tokenizer.json.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import zlib
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

AUSTEN = "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"
SAWYER = "usr/share/gocode/src/github.com/klauspost/compress/testdata/Mark.Twain-Tom.Sawyer.txt"
ALICE = "Brotli-1.1.0/tests/testdata/alice29.txt"

VOCABULARY = 2048
HELD_OUT_SHARE = 0.02  # of every work: its end is not used for training

SPECIAL_TOKENS = [
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜▁pad▁｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "<think>",
    "</think>",
    "｜DSML｜",
    "<｜latest_reminder｜>",
    "<｜action｜>",
    "<｜query｜>",
    "<｜authority｜>",
    "<｜domain｜>",
    "<｜title｜>",
    "<｜read_url｜>",
]

Work = list[list[str]]  # paragraphs of sentences


def read_r_vectors(path: Path) -> list[list[str]]:
    """Return the character vectors of an R lazy-load file, whose records are a big-endian size and a zlib stream."""
    raw = path.read_bytes()
    vectors = []
    while raw:
        stream = zlib.decompressobj()
        vectors.append(parse_r_strings(stream.decompress(raw[4:])))
        raw = stream.unused_data
    return vectors


def parse_r_strings(data: bytes) -> list[str]:
    """Parse a serialised R character vector, format version 3: header, native encoding, flags, count, strings."""
    (name_size,) = struct.unpack_from(">I", data, 14)
    at = 18 + name_size
    flags, count = struct.unpack_from(">II", data, at)
    if flags & 0xFF != 16:
        raise ValueError(f"expected an R character vector, found type {flags & 0xFF}")
    at += 8
    strings = []
    for _ in range(count):
        (size,) = struct.unpack_from(">i", data, at + 4)
        at += 8
        strings.append(data[at : at + max(size, 0)].decode("utf-8"))
        at += max(size, 0)
    return strings


def read_works(raw: Path) -> list[str]:
    works = ["\n".join(lines) for lines in read_r_vectors(raw / AUSTEN)]
    sawyer = (raw / SAWYER).read_text("ascii")
    works.append(sawyer[sawyer.index("MOST of the adventures") : sawyer.index("End of the Project Gutenberg")])
    alice = (raw / ALICE).read_text("ascii").replace("\r\n", "\n")
    works.append(modern_quotes(alice[alice.index("  Alice was beginning") :]))
    return works


def modern_quotes(text: str) -> str:
    """Replace the `single quotes' of Alice by double quotes, which the other works use."""
    return re.sub(r"(?<=[,.!?;:\-)])'(?!\w)", '"', text.replace("`", '"'))


def paragraphs(text: str) -> Work:
    text = text.replace("\r", "").replace("\n  ", "\n\n  ")  # Alice marks a paragraph by its indent only
    text = text.replace("_", "").replace("*", "")
    found = [" ".join(block.split()) for block in re.split(r"\n\s*\n", text)]
    return [sentences(block) for block in found if is_prose(block)]


def is_prose(block: str) -> bool:
    """Whether a block is prose. Headings, tables of contents and signatures are short or have few lowercase letters."""
    return len(block) > 20 and block[-1] in ".!?\"';:)-" and sum(c.islower() for c in block) > 0.5 * len(block)


def sentences(block: str) -> list[str]:
    """Cut a block after . ! ? and their closing quotes, but not after a title such as "Mr."."""
    parts = re.split(r"(?<=[.!?]) (?=[\"'A-Z])|(?<=[.!?][\"']) (?=[\"'A-Z])", block)
    joined: list[str] = []
    for part in parts:
        if joined and re.search(r"\b(Mr|Mrs|Dr|Ms|St|Esq|Capt|Col|[A-Z])\.$", joined[-1]):
            joined[-1] += " " + part
        else:
            joined.append(part)
    return joined


def split(work: Work) -> tuple[Work, Work]:
    """Split a work into the part for training and its last paragraphs, about HELD_OUT_SHARE of its characters."""
    budget = HELD_OUT_SHARE * sum(len(s) for paragraph in work for s in paragraph)
    cut = len(work)
    while budget > 0:
        cut -= 1
        budget -= sum(len(s) for s in work[cut])
    return work[:cut], work[cut:]


def train_tokenizer(works: list[Work]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    text = ["\n\n".join(" ".join(paragraph) for paragraph in work) for work in works]
    tokenizer.train_from_iterator(text, trainer)
    return tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description="text packages -> corpus.json and tokenizer.json")
    parser.add_argument("--raw", type=Path, required=True, help="folder with the unpacked packages")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    halves = [split(paragraphs(text)) for text in read_works(options.raw)]
    corpus = {"train": [train for train, _ in halves], "heldout": [held for _, held in halves]}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "corpus.json").write_text(json.dumps(corpus), "utf-8")
    tokenizer = train_tokenizer(corpus["train"])
    tokenizer.save(str(options.out / "tokenizer.json"))
    for name, works in corpus.items():
        print(name, [sum(len(s) for p in work for s in p) for work in works], "characters")


if __name__ == "__main__":
    main()
