"""Train the demo model on a CPU within a given time.

The learning rate follows the wall clock: a slower machine trains on fewer tokens, but the learning rate always ends at
zero. Training needs the output of prepare_data.py:

    OMP_NUM_THREADS=2 nice -n 19 python train.py --data work --out work --minutes 65

Writes work/checkpoint.pt every 3 minutes and at the end, and prints the losses every 10 steps.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import DeepseekV4Config, DeepseekV4ForCausalLM

from fast_forward import NO_MASK, balance, index_loss, install, request_index_loss
from samples import Sampler

CONFIG = Path(__file__).parent / "v4_models" / "demo" / "config.json"
SEED = 4
TOKENS_PER_STEP = 4096
ROW_LENGTHS = {256: 0.3, 512: 0.45, 1024: 0.15, 4096: 0.1}  # length -> share of the steps
INDEX_LOSS_EVERY = 4  # steps
CHECKPOINT_SECONDS = 180
MUON_RATE, ADAM_RATE, WEIGHT_DECAY = 0.02, 3e-3, 0.05


class Muon(torch.optim.Optimizer):
    """Momentum with updates that Newton-Schulz makes orthogonal. The experts' 3D weights are a batch of matrices."""

    def __init__(self, params: list[nn.Parameter], lr: float, momentum: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    continue
                state = self.state[param]
                average = state.setdefault("average", torch.zeros_like(param))
                average.lerp_(param.grad, 1 - group["momentum"])
                update = orthogonal(param.grad.lerp(average, group["momentum"]))
                param.mul_(1 - group["lr"] * group["weight_decay"])
                scale = max(1.0, param.shape[-2] / param.shape[-1]) ** 0.5
                param.add_(update, alpha=-group["lr"] * scale)


def orthogonal(matrix: Tensor) -> Tensor:
    wide: Tensor = matrix if matrix.shape[-2] <= matrix.shape[-1] else matrix.mT
    x: Tensor = (wide / (wide.norm(dim=(-2, -1), keepdim=True) + 1e-7)).bfloat16()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return (x if matrix.shape[-2] <= matrix.shape[-1] else x.mT).to(matrix.dtype)


def build_model() -> DeepseekV4ForCausalLM:
    keys = json.loads(CONFIG.read_text("utf-8"))
    config = DeepseekV4Config(**{k: v for k, v in keys.items() if k not in {"architectures", "transformers_version"}})
    config._attn_implementation = "eager"
    torch.manual_seed(SEED)
    model = DeepseekV4ForCausalLM(config)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        initialise(name, tensor.data)
    return model


def initialise(name: str, tensor: Tensor) -> None:
    """Initialise what transformers leaves at zero, and let hyper-connections nearly pass streams through."""
    if name.endswith("tid2eid"):
        tensor.copy_(torch.rand(tensor.shape[0], 8).argsort(dim=1)[:, : tensor.shape[1]])
    elif name.endswith(("sinks", "position_bias", "e_score_correction_bias")):
        tensor.normal_(std=0.02)
    elif name.endswith("_hc.base"):
        tensor[8:].copy_(3.0 * torch.eye(4).flatten())


def optimisers(model: DeepseekV4ForCausalLM) -> list[torch.optim.Optimizer]:
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, param in model.named_parameters():
        inner = ".layers." in name and param.ndim >= 2
        special = name.endswith(("position_bias", "hc.fn", "gate.weight"))
        (matrices if inner and not special else others).append(param)
    adam = torch.optim.AdamW(others, lr=ADAM_RATE, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
    return [Muon(matrices, MUON_RATE, 0.95, WEIGHT_DECAY), adam]


def rate(progress: float) -> float:
    """Return the share of the full learning rate: it rises for 2 % of the time and falls to zero over the last 60 %."""
    return max(0.0, min(1.0, (progress + 0.002) / 0.02, (1 - progress) / 0.6))


def forward_loss(model: DeepseekV4ForCausalLM, rows: list[list[int]]) -> Tensor:
    ids = torch.tensor(rows)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1].contiguous(), attention_mask=NO_MASK, use_cache=False).logits
    return F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())


def held_out_rows(sampler: Sampler) -> dict[str, list[list[int]]]:
    sampler.random.seed(SEED)
    return {
        "held chat": [sampler.chat(512)[:513] for _ in range(8)],
        "held text": [sampler.document(4096)[:4097] for _ in range(1)],
    }


def save(model: DeepseekV4ForCausalLM, path: Path, **facts: Any) -> None:
    torch.save({"model": model.state_dict(), **facts}, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def train(options: argparse.Namespace) -> None:
    data, seed = options.data, SEED + options.resume
    options.out.mkdir(parents=True, exist_ok=True)
    sampler = Sampler(data / "corpus.json", data / "tokenizer.json", "train", seed)
    held = held_out_rows(Sampler(data / "corpus.json", data / "tokenizer.json", "heldout", seed))
    model = build_model()
    checkpoint = options.out / "checkpoint.pt"
    if options.resume:
        model.load_state_dict(torch.load(checkpoint)["model"])
    install(model)
    steppers = optimisers(model)
    full_rates = [[group["lr"] for group in stepper.param_groups] for stepper in steppers]
    start = saved = time.monotonic()
    step, losses = 0, []
    while (progress := (time.monotonic() - start) / (60 * options.minutes)) < 1:
        for stepper, rates in zip(steppers, full_rates, strict=True):
            for group, full in zip(stepper.param_groups, rates, strict=True):
                group["lr"] = full * rate(progress)
        length = sampler.random.choices(list(ROW_LENGTHS), list(ROW_LENGTHS.values()))[0]
        rows = [sampler.row(length) for _ in range(TOKENS_PER_STEP // length)]
        losses.append(train_step(model, steppers, rows, step))
        step += 1
        if step % 10 == 0:
            facts = {name: round(forward_loss(model, rows).item(), 3) for name, rows in held.items() if step % 100 == 0}
            mean = sum(losses[-10:]) / 10
            print(f"{progress:.3f} step {step} tokens {step * TOKENS_PER_STEP} loss {mean:.3f} {facts}", flush=True)
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            save(model, checkpoint, step=step, tokens=step * TOKENS_PER_STEP)
            saved = time.monotonic()
    save(model, checkpoint, step=step, tokens=step * TOKENS_PER_STEP)
    print("done", step, "steps", step * TOKENS_PER_STEP, "tokens", flush=True)


def train_step(
    model: DeepseekV4ForCausalLM, steppers: list[torch.optim.Optimizer], rows: list[list[int]], step: int
) -> float:
    index_step = step % INDEX_LOSS_EVERY == 0
    request_index_loss(model, index_step)
    loss = forward_loss(model, rows)
    total = loss + index_loss(model) if index_step else loss
    total.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for stepper in steppers:
        stepper.step()
        stepper.zero_grad()
    balance(model)
    return loss.item()


def main() -> None:
    parser = argparse.ArgumentParser(description="train the demo model; see the module's docstring")
    parser.add_argument("--data", type=Path, required=True, help="folder with corpus.json and tokenizer.json")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=65.0)
    parser.add_argument("--resume", type=int, default=0, help="continue from the checkpoint; added to the seed")
    train(parser.parse_args())


if __name__ == "__main__":
    main()
