"""Measure the shipped model on held-out text and generate samples, with transformers' unmodified forward pass.

    python evaluate.py --data work --demo v4_models/demo

Prints Markdown for the model card: the loss by position, and answers to fixed prompts with a fixed seed.
"""

from __future__ import annotations

import argparse
from itertools import pairwise
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from transformers import DeepseekV4ForCausalLM

from export import GENERATION, load_exported
from samples import BOS, EOS, Sampler

EDGES = [0, 128, 512, 1024, 2048, 4096]  # positions
PROMPTS = [
    "Tell me a story.",
    "Tell me about Emma.",
    "Continue: It was a fine morning, and they all walked to the village together.",
    "What happened to Tom?",
]
TURN_START = "<｜begin▁of▁sentence｜><｜User｜>"


@torch.no_grad()
def losses(model: DeepseekV4ForCausalLM, ids: list[int]) -> torch.Tensor:
    row = torch.tensor([ids])
    return F.cross_entropy(model(row[:, :-1], use_cache=False).logits[0], row[0, 1:], reduction="none")


def loss_by_position(model: DeepseekV4ForCausalLM, sampler: Sampler) -> None:
    """Print the loss by position. The held-out end of each work is one document, cut at the last edge."""
    found = []
    for work in sampler.works:
        ids = [BOS, *work[0].first, *(i for sentence in work[1:] for i in sentence.joined)]
        found.append(losses(model, ids[: EDGES[-1] + 1]))
    print("| Position | Tokens | Loss |\n|---|---|---|")
    for low, high in pairwise(EDGES):
        values = torch.cat([loss[low:high] for loss in found])
        print(f"| {low} to {high} | {len(values)} | {values.mean():.3f} |")
    print(f"| all | {sum(map(len, found))} | {torch.cat(found).mean():.3f} |")


def chat_loss(model: DeepseekV4ForCausalLM, sampler: Sampler) -> None:
    values = torch.cat([losses(model, sampler.chat(1024)[:1025]) for _ in range(8)])
    print(f"\nChat markup, 8 dialogues of 1,024 tokens: {values.mean():.3f}")


def answer(model: DeepseekV4ForCausalLM, tokenizer: Tokenizer, prompt: str, greedy: bool) -> str:
    text = f"{TURN_START}{prompt}<｜Assistant｜></think>"
    ids = torch.tensor([tokenizer.encode(text, add_special_tokens=False).ids])
    torch.manual_seed(0)
    sampled = {"do_sample": True, "top_k": 0, "temperature": GENERATION["temperature"], "top_p": GENERATION["top_p"]}
    choice = {"do_sample": False} if greedy else sampled
    made = model.generate(ids, max_new_tokens=300, eos_token_id=EOS, pad_token_id=2, **choice)[0, ids.shape[1] :]
    end = "" if made[-1] == EOS else " [no end within 300 tokens]"
    return f"({len(made)} tokens) {tokenizer.decode(made.tolist())}{end}"


def main() -> None:
    parser = argparse.ArgumentParser(description="held-out loss and sample answers; see the module's docstring")
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus.json")
    parser.add_argument("--demo", type=Path, default=Path(__file__).parent / "v4_models" / "demo")
    options = parser.parse_args()
    model = load_exported(options.demo)
    sampler = Sampler(options.data / "corpus.json", options.demo / "tokenizer.json", "heldout", 0)
    print(sum(p.numel() for p in model.parameters()), "parameters\n")
    for prompt in PROMPTS:
        for greedy in (False, True):
            how = "greedy" if greedy else f"temperature {GENERATION['temperature']}"
            print(f"**{prompt}** {how}\n\n> " + answer(model, sampler.tokenizer, prompt, greedy).replace("\n", "\n> "))
            print(flush=True)
    loss_by_position(model, sampler)
    chat_loss(model, sampler)


if __name__ == "__main__":
    main()
