"""Turn a training checkpoint into the shipped folder, in DeepSeek's layout, and check that the model did not change.

Each file of the folder is replaced atomically, so that a reader never sees half a file:

    python export.py --data work --demo v4_models/demo

`config.json` is an input of the training and is not written. The check loads the written tensors into transformers
through `naming` and compares the logits with those of the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import DeepseekV4ForCausalLM

from naming import to_deepseek, to_transformers
from train import build_model

SIZE_LIMIT = 20_000_000  # bytes of the whole folder
TOLERANCE = 1e-5

GENERATION = {
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "do_sample": True,
    "temperature": 0.6,
    "top_p": 0.9,
    "default_mode": "chat",
}
TOKENIZER = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 8192,
    "bos_token": "<｜begin▁of▁sentence｜>",
    "eos_token": "<｜end▁of▁sentence｜>",
    "pad_token": "<｜▁pad▁｜>",
    "add_bos_token": False,
    "clean_up_tokenization_spaces": False,
}


def write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", "utf-8")


def write_files(folder: Path, model: DeepseekV4ForCausalLM, tokenizer: Path) -> None:
    save_file(to_deepseek(model.state_dict()), folder / "model.safetensors", metadata={"format": "pt"})
    Tokenizer.from_file(str(tokenizer)).save(str(folder / "tokenizer.json"), pretty=False)
    write_json(folder / "tokenizer_config.json", TOKENIZER)
    write_json(folder / "generation_config.json", GENERATION)


def load_exported(folder: Path) -> DeepseekV4ForCausalLM:
    model = build_model()
    model.load_state_dict(to_transformers(load_file(folder / "model.safetensors")))
    model.train(False)
    return model


@torch.no_grad()
def largest_difference(one: DeepseekV4ForCausalLM, other: DeepseekV4ForCausalLM) -> float:
    ids = torch.randint(3, one.config.vocab_size, (1, 700), generator=torch.Generator().manual_seed(0))
    return float((one(ids).logits - other(ids).logits).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description="checkpoint.pt -> model folder; see the module's docstring")
    parser.add_argument("--data", type=Path, required=True, help="folder with checkpoint.pt and tokenizer.json")
    parser.add_argument("--demo", type=Path, default=Path(__file__).parent / "v4_models" / "demo")
    options = parser.parse_args()
    checkpoint = torch.load(options.data / "checkpoint.pt")
    model = build_model()
    model.load_state_dict(checkpoint["model"])
    with tempfile.TemporaryDirectory(dir=options.data) as scratch:
        write_files(Path(scratch), model, options.data / "tokenizer.json")
        difference = largest_difference(model, load_exported(Path(scratch)))
        if difference > TOLERANCE:
            raise SystemExit(
                f"not exported: the exported model's logits differ from the checkpoint's by {difference}; at most "
                f"{TOLERANCE} is allowed"
            )
        for file in sorted(Path(scratch).iterdir()):
            part = shutil.copy(file, options.demo / f".{file.name}.part")
            os.chmod(part, 0o644)
            os.replace(part, options.demo / file.name)
    size = sum(file.stat().st_size for file in options.demo.rglob("*") if file.is_file())
    print(f"{checkpoint['step']} steps, {checkpoint['tokens']} tokens, largest difference {difference}, {size} bytes")
    if size > SIZE_LIMIT:
        raise SystemExit(f"the folder has {size} bytes, more than the limit of {SIZE_LIMIT}")


if __name__ == "__main__":
    main()
