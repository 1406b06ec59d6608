"""A request to the engine, and the sequences that compute it, one for each choice."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal, Protocol

from v4_core.blocks import BLOCK_TOKENS, block_names, pack_ids
from v4_core.errors import RequestError
from v4_core.sampling import Sampling

Key = tuple[str, int, *tuple[int, ...]]  # request, attempt, and whatever else its owner needs to identify it
Phase = Literal["whole", "prefill", "decode"]
Finish = Literal["stop", "length"]


class History(Protocol):
    """The token counts that the sampler keeps for a sequence with penalties."""

    def add(self, token: int) -> None:
        """Count a token that was sampled."""


@dataclass(frozen=True)
class Request:
    """What to compute. `output` are tokens that the client already has; n is 1 if there are any."""

    key: Key
    phase: Phase
    prompt: Seq[int]
    output: Seq[int] = ()
    n: int = 1
    first_choice: int = 0
    max_tokens: int = 16  # output tokens per choice, including `output`
    stop_ids: frozenset[int] = frozenset()  # includes end of sequence unless the request ignores it
    sampling: Sampling = field(default_factory=Sampling)
    salt: bytes = b""

    @property
    def tokens(self) -> int:
        """Tokens that must be computed before the first token is sampled."""
        return len(self.prompt) + len(self.output)

    def check(self, vocab: int) -> None:
        """Raise RequestError if the request can never be served by a model with this vocabulary."""
        tokens = (*self.prompt, *self.output)
        if not self.prompt:
            raise RequestError("the prompt has no tokens")
        if not 0 <= min(tokens) <= max(tokens) < vocab:
            raise RequestError(f"the prompt has token ids outside the vocabulary of {vocab} tokens")
        if any(not 0 <= token < vocab for token in self.sampling.logit_bias):
            raise RequestError(f"logit_bias has token ids outside the vocabulary of {vocab} tokens")
        if self.n < 1 or (self.output and self.n > 1):
            raise RequestError(f"n is {self.n}: it must be at least 1, and exactly 1 if the request has output already")
        if self.max_tokens <= len(self.output):
            raise RequestError(
                f"max_tokens is {self.max_tokens}, but the request has {len(self.output)} output tokens already"
            )


@dataclass(eq=False)
class Sequence:
    """One choice of a request and its cache, which is block slots and a tail.

    The first `named` of `slots` hold complete blocks that are in the prefix tree.
    """

    request: Request
    choice: int
    ids: list[int]  # prompt and output
    names: list[bytes] = field(default_factory=list)  # of the complete blocks of `ids`
    slots: list[int] = field(default_factory=list)
    named: int = 0
    computed: int = 0  # tokens whose state is in the tail
    write_from: int = 0  # entries that close before this position exist already
    valid_from: int = 0  # first position whose raw rows exist or are computed
    tail: int | None = None
    rolling: tuple[int, ...] = ()  # slots of the rolling checkpoint
    rolling_at: int = 0  # boundary whose state it holds, 0 = none
    boundaries: list[int] = field(default_factory=list)  # where the prompt's state is still to be kept, ascending
    admitted: bool = False  # its first admission was reported
    damaged: bool = False  # its named blocks leave the tree when it is dropped
    reported: int = 0  # complete blocks that were reported, if this is a prefill sequence
    history: History | None = None  # kept if the request has penalties
    forks: list["Sequence"] = field(default_factory=list)  # the other choices, until the prompt is computed

    @classmethod
    def of(cls, request: Request, choice: int) -> "Sequence":
        """Return a sequence of a request, with nothing computed."""
        sequence = cls(request, choice, [*request.prompt, *request.output])
        sequence.extend_names()
        return sequence

    @property
    def output_length(self) -> int:
        """Output tokens so far."""
        return len(self.ids) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next token is sampled: 1 while decoding."""
        return len(self.ids) - self.computed

    def append(self, token: int) -> None:
        """Append a token that was sampled."""
        self.ids.append(token)
        if self.history is not None:
            self.history.add(token)
        self.extend_names()

    def extend_names(self) -> None:
        """Name the blocks that `ids` has completed."""
        done = len(self.names) * BLOCK_TOKENS
        if len(self.ids) - done < BLOCK_TOKENS:
            return
        parent = self.names[-1] if self.names else None
        self.names += block_names(pack_ids(self.ids[done:]), self.request.salt, parent)
