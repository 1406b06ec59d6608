"""Sampling, as a function of the request's parameters, its prompt ids, the output ids so far and the choice.

    logits -> bias -> repetition penalty, then frequency and presence -> temperature -> min-p -> top-k -> top-p
    -> probabilities -> Philox(seed, choice, position) -> one uniform -> inverse CDF in token-id order

This is vLLM's order. Each filter sees the renormalised result of the filter before it: top-p is a share of what min-p
and top-k keep. (transformers applies min-p last, which differs only if both min-p and top-p are set.) Of equal logits
the one with the lower id counts as likelier, so top-k keeps exactly k tokens.

The uniform number is computed on the host, so that a continuation on another worker samples the same tokens. Reported
log-probabilities are the model's own, before all of these steps.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from v4_core.sampling import Sampling


class TokenHistory:
    """What penalties need of a sequence: how often its output has each token, and which tokens occur in it at all.

    The history is on the device and grows by one token at a time, so that the cost of a step does not grow with the
    sequence.
    """

    def __init__(self, ids: Sequence[int], prompt: int, vocab: int, device: torch.device) -> None:
        """`ids` are prompt and output; the first `prompt` of them are the prompt."""
        self.counts = torch.bincount(torch.tensor(ids[prompt:], dtype=torch.int64), minlength=vocab).to(device)
        self.seen = torch.bincount(torch.tensor(ids, dtype=torch.int64), minlength=vocab).to(device) > 0

    def add(self, token: int) -> None:
        """Count a token that was sampled."""
        self.counts[token] += 1
        self.seen[token] = True


@dataclass(frozen=True)
class Draw:
    """One token to sample, at `position` (the number of tokens before it) of a choice."""

    sampling: Sampling
    position: int
    choice: int
    history: TokenHistory | None = None  # needed if `penalised`


@dataclass(frozen=True)
class Drawn:
    """A sampled token, with log-probabilities if the request asks for them."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


def uniform(seed: int, choice: int, position: int) -> float:
    """Return the only random number of a draw, in [0, 1) with 53 bits."""
    key = np.array([seed % 2**64, 0], dtype=np.uint64)
    generator = np.random.Philox(key=key, counter=np.array([position, choice, 0, 0], dtype=np.uint64))
    return int(generator.random_raw() >> 11) * 2.0**-53


def penalised(s: Sampling) -> bool:
    """Whether draws with these parameters need a TokenHistory."""
    return s.presence_penalty != 0 or s.frequency_penalty != 0 or s.repetition_penalty != 1


@torch.inference_mode()
def sample(logits: Tensor, draws: Sequence[Draw]) -> list[Drawn | None]:
    """Sample one token for each row of logits [n, vocab]. A row with NaN or infinity gives None."""
    adjusted = _adjust(logits, draws)
    ids = adjusted.argmax(-1)
    if any(d.sampling.temperature > 0 for d in draws):
        hot = torch.tensor([d.sampling.temperature > 0 for d in draws], device=logits.device)
        ids = torch.where(hot, _random(adjusted, draws), ids)
    broken = (logits * 0).sum(-1) != 0  # 0 * x is 0 for finite x only
    chosen: list[int] = torch.where(broken, -1, ids).tolist()
    drawn: list[Drawn | None] = [Drawn(token) if token >= 0 else None for token in chosen]
    wanted = [i for i, d in enumerate(draws) if d.sampling.logprobs is not None and chosen[i] >= 0]
    for i, one in zip(wanted, _with_logprobs(logits, draws, chosen, wanted), strict=True):
        drawn[i] = one
    return drawn


def _adjust(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Return the logits after bias and penalties.

    Presence and frequency penalties count output tokens; the repetition penalty counts prompt tokens too.
    """
    rows = [i for i, d in enumerate(draws) if penalised(d.sampling)]
    biased = [(i, t, v) for i, d in enumerate(draws) for t, v in d.sampling.logit_bias.items()]
    if not rows and not biased:
        return logits
    logits = logits.clone()
    if biased:
        row, token, value = (torch.tensor(column, device=logits.device) for column in zip(*biased, strict=True))
        logits.index_put_((row, token), value.to(logits.dtype), accumulate=True)
    if rows:
        logits[rows] = _penalise(logits[rows], [draws[i] for i in rows])
    return logits


def _penalise(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    histories = [d.history for d in draws if d.history is not None]
    counts, seen = torch.stack([h.counts for h in histories]), torch.stack([h.seen for h in histories])
    columns = [
        (d.sampling.presence_penalty, d.sampling.frequency_penalty, d.sampling.repetition_penalty) for d in draws
    ]
    presence, frequency, repetition = torch.tensor(columns, dtype=logits.dtype, device=logits.device).T.unsqueeze(-1)
    repeated = torch.where(logits > 0, logits / repetition, logits * repetition)
    lowered: Tensor = torch.where(seen, repeated, logits) - presence * (counts > 0) - frequency * counts
    return lowered


def _random(logits: Tensor, draws: Sequence[Draw]) -> Tensor:
    """Return inverse-CDF draws [n]. Rows with temperature 0 are drawn at temperature 1; the caller ignores them."""
    temperature = _column([d.sampling.temperature or 1.0 for d in draws], logits)
    u = _column([uniform(d.sampling.seed, d.choice, d.position) for d in draws], logits)
    logits = logits.to(torch.float64)
    weights = ((logits - logits.amax(-1, keepdim=True)) / temperature).softmax(-1)
    if any(d.sampling.top_k or d.sampling.top_p < 1 or d.sampling.min_p > 0 for d in draws):
        weights = _filter(weights, [d.sampling for d in draws])
    cumulative = weights.cumsum(-1)
    return (
        torch.searchsorted(cumulative, u * cumulative[:, -1:], right=True).squeeze(-1).clamp_(max=logits.shape[-1] - 1)
    )


def _filter(weights: Tensor, params: Sequence[Sampling]) -> Tensor:
    """Set the probabilities [n, vocab] that min-p, top-k and top-p drop to 0. The highest is always kept."""
    vocab = weights.shape[-1]
    min_p = _column([s.min_p for s in params], weights)
    top_k = _column([s.top_k or vocab for s in params], weights)
    top_p = _column([s.top_p if s.top_p < 1 else math.inf for s in params], weights)
    ordered, order = weights.sort(dim=-1, descending=True, stable=True)
    kept = (ordered >= min_p * ordered[:, :1]) & (torch.arange(vocab, device=weights.device) < top_k)
    kept[:, 0] = True
    ordered *= kept
    total = ordered.cumsum(-1)
    kept[:, 1:] &= total[:, :-1] < top_p * total[:, -1:]
    return weights * torch.zeros_like(kept).scatter_(1, order, kept)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    """Return the values as float64 [n, 1] on the device of `like`."""
    return torch.tensor(values, dtype=torch.float64, device=like.device).unsqueeze(-1)


def _with_logprobs(logits: Tensor, draws: Sequence[Draw], chosen: list[int], wanted: list[int]) -> list[Drawn]:
    if not wanted:
        return []
    scores = logits[wanted].log_softmax(-1)
    own = scores.gather(1, torch.tensor([[chosen[i]] for i in wanted], device=logits.device)).squeeze(1).tolist()
    drawn = []
    for row, i in enumerate(wanted):
        count = draws[i].sampling.logprobs or 0
        drawn.append(Drawn(chosen[i], own[row], _top(scores[row], count)))
    return drawn


def _top(scores: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    """Return the `count` highest of scores [vocab] with their ids. Equal scores are ordered by id."""
    if not count:
        return ()
    values, ids = scores.topk(min(count + 1, scores.shape[0]))
    if len(values) <= count or values[count - 1] == values[count]:  # a tie at the cut: the lower ids win
        values, ids = scores.sort(descending=True, stable=True)
    pairs = sorted(zip(ids.tolist(), values.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return tuple(pairs[:count])
