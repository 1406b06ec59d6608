"""Drawing tokens: a function of the request's parameters, prompt ids, output ids so far and choice.

    logits -> penalties and bias -> temperature -> top-k, top-p, min-p -> probabilities
    -> Philox(seed, choice, position) -> one uniform -> inverse CDF in token-id order

The uniform is made on the host, so that a continuation on another worker draws the same. Log-probabilities reported are
the model's own, before any of this.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from v4_core.sampling import Sampling


@dataclass(frozen=True)
class Draw:
    """One token to draw: `ids` are the prompt and the output so far, of which `prompt` are the prompt."""

    sampling: Sampling
    ids: Sequence[int]
    prompt: int
    choice: int


@dataclass(frozen=True)
class Drawn:
    """A drawn token; log-probabilities if they were asked for."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def uniform(seed: int, choice: int, position: int) -> float:
    """The one random number of a draw, in [0, 1) with 53 bits."""
    key = np.array([seed % 2**64, 0], dtype=np.uint64)
    generator = np.random.Philox(key=key, counter=np.array([position, choice, 0, 0], dtype=np.uint64))
    return int(generator.random_raw() >> 11) * 2.0**-53


@torch.inference_mode()
def sample(logits: Tensor, draws: Sequence[Draw]) -> list[Drawn]:
    """One token per row of logits [n, vocab]."""
    plain = all(d.sampling.temperature == 0 and not _adjusted(d.sampling) for d in draws)
    adjusted = logits if plain else _adjust(logits, draws)
    greedy = adjusted.argmax(-1)
    if all(d.sampling.temperature == 0 for d in draws):
        ids = greedy
    else:
        hot = torch.tensor([d.sampling.temperature > 0 for d in draws], device=logits.device)
        ids = torch.where(hot, _random(adjusted, draws), greedy)
    chosen = ids.tolist()
    wanted = [i for i, d in enumerate(draws) if d.sampling.logprobs is not None]
    if not wanted:
        return [Drawn(token) for token in chosen]
    return _with_logprobs(logits, draws, chosen, wanted)


def _adjusted(s: Sampling) -> bool:
    return bool(s.logit_bias) or s.presence_penalty != 0 or s.frequency_penalty != 0 or s.repetition_penalty != 1


def _adjust(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Logits after penalties and bias; presence and frequency count output tokens, repetition the prompt's too."""
    rows: list[int] = []
    columns: list[int] = []
    scale: list[float] = []
    shift: list[float] = []
    for row, draw in enumerate(draws):
        s = draw.sampling
        if not _adjusted(s):
            continue
        counts = Counter(draw.ids[draw.prompt :])
        seen = set(draw.ids) if s.repetition_penalty != 1 else set()
        for token in counts.keys() | seen | s.logit_bias.keys():
            count = counts[token]
            rows.append(row)
            columns.append(token)
            scale.append(s.repetition_penalty if token in seen else 1.0)
            penalty = s.presence_penalty * (count > 0) + s.frequency_penalty * count
            shift.append(s.logit_bias.get(token, 0.0) - penalty)
    if not rows:
        return logits
    index = torch.tensor([rows, columns], device=logits.device)
    factor, offset = torch.tensor([scale, shift], dtype=logits.dtype, device=logits.device)
    value = logits[index[0], index[1]]
    value = torch.where(value > 0, value / factor, value * factor) + offset
    return logits.index_put((index[0], index[1]), value)


def _random(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Inverse-CDF draws [n]; rows with temperature 0 are drawn at temperature 1, for nobody."""
    params = [d.sampling for d in draws]
    column = [
        [s.temperature or 1.0 for s in params],
        [s.top_p for s in params],
        [s.min_p for s in params],
        [uniform(d.sampling.seed, d.choice, len(d.ids)) for d in draws],
    ]
    temperature, top_p, min_p, u = torch.tensor(column, dtype=torch.float64, device=logits.device).unsqueeze(-1)
    weights = (logits.to(torch.float64) / temperature).softmax(-1)
    if any(s.top_k or s.top_p < 1 or s.min_p > 0 for s in params):
        vocab = logits.shape[-1]
        top_k = torch.tensor([s.top_k or vocab for s in params], device=logits.device).unsqueeze(-1)
        ordered, order = weights.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(vocab, device=logits.device)
        before = ordered.cumsum(-1) - ordered
        kept = (rank < top_k) & (before < top_p) & (ordered >= min_p * ordered[:, :1])
        kept[:, 0] = True
        weights = weights * torch.zeros_like(kept).scatter_(1, order, kept)
    cumulative = weights.cumsum(-1)
    return (
        torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)
    )


def _with_logprobs(logits: Tensor, draws: Sequence[Draw], chosen: list[int], wanted: list[int]) -> list[Drawn]:
    scores = logits[wanted].log_softmax(-1)
    own = scores.gather(1, torch.tensor([[chosen[i]] for i in wanted], device=logits.device)).squeeze(1).tolist()
    most = max(draws[i].sampling.logprobs or 0 for i in wanted)
    values, ids = (t.tolist() for t in scores.sort(dim=-1, descending=True, stable=True)) if most else ([], [])
    drawn = [Drawn(token) for token in chosen]
    for row, i in enumerate(wanted):
        count = draws[i].sampling.logprobs or 0
        top = tuple(zip(ids[row][:count], values[row][:count], strict=True)) if count else ()
        drawn[i] = Drawn(chosen[i], own[row], top)
    return drawn
