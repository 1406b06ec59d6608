"""Builds a small byte-level BPE tokenizer with DeepSeek V4's special tokens."""

import json
from functools import cache
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from v4_router.chat import MARKERS

SPECIALS = (*MARKERS, "｜DSML｜")
WORDS = "the cat sat on the mat and a dog ran to see what the cat had found there , it was a bird . "
EXTRA = "你好 推理 答案 ünïcödé 🙂🚀 naïve"


@cache
def build_tokenizer() -> Tokenizer:
    """Ids: special tokens first, then bytes, then merges."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS * 20, EXTRA * 5], trainer)
    return tokenizer


def write_model(folder: Path, default_mode: str | None = "chat") -> Path:
    """Writes the files of a model folder that the router reads."""
    folder.mkdir(parents=True, exist_ok=True)
    build_tokenizer().save(str(folder / "tokenizer.json"))
    if default_mode is not None:
        (folder / "generation_config.json").write_text(json.dumps({"default_mode": default_mode}))
    return folder
