"""A request as the engine sees it, and the sequences (one per choice) that compute it."""

from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from typing import Literal, Protocol

from v4_core.blocks import BLOCK_TOKENS, block_names, pack_ids
from v4_core.sampling import Sampling

Key = tuple[str, int, *tuple[int, ...]]  # request, attempt, and what else its owner needs to tell it from others
Phase = Literal["whole", "prefill", "decode"]
Finish = Literal["stop", "length"]


class History(Protocol):
    """What the sampler keeps of a sequence whose penalties ask for it."""

    def add(self, token: int) -> None:
        """A token was drawn."""


@dataclass(frozen=True)
class Request:
    """What is to be computed. `output` are tokens that the client already has; then n is 1."""

    key: Key
    phase: Phase
    prompt: Seq[int]
    output: Seq[int] = ()
    n: int = 1
    first_choice: int = 0
    max_tokens: int = 16  # of output per choice, `output` counted
    stop_ids: frozenset[int] = frozenset()  # end-of-sequence among them unless it is to be ignored
    sampling: Sampling = field(default_factory=Sampling)
    salt: bytes = b""

    @property
    def tokens(self) -> int:
        """Tokens that must be computed before the first draw."""
        return len(self.prompt) + len(self.output)


@dataclass(eq=False)
class Sequence:
    """One choice of a request and its cache: `slots` of its blocks, the first `named` in the tree, and a tail."""

    request: Request
    choice: int
    ids: list[int]  # prompt and output
    names: list[bytes] = field(default_factory=list)  # of complete blocks of ids, extended as ids grow
    slots: list[int] = field(default_factory=list)
    named: int = 0
    computed: int = 0  # tokens whose state is in the tail
    write_from: int = 0
    valid_from: int = 0
    tail: int | None = None
    rolling: tuple[int, ...] = ()  # slots of the rolling checkpoint
    rolling_at: int = 0  # boundary that it holds, 0 = none
    boundaries: list[int] = field(default_factory=list)  # still to be kept while the prompt is computed
    admitted: bool = False  # its first admission was told
    damaged: bool = False  # its blocks are to be forgotten with it
    told: int = 0  # complete blocks of a prefill leg that were told
    history: History | None = None  # of its tokens, once penalties ask for it
    forks: list["Sequence"] = field(default_factory=list)  # other choices, until the prompt is done

    @classmethod
    def of(cls, request: Request, choice: int) -> "Sequence":
        """A sequence with nothing computed."""
        sequence = cls(request, choice, [*request.prompt, *request.output])
        sequence.extend_names()
        return sequence

    @property
    def output_length(self) -> int:
        """Output tokens so far."""
        return len(self.ids) - len(self.request.prompt)

    @property
    def remaining(self) -> int:
        """Tokens to compute before the next draw: 1 while decoding."""
        return len(self.ids) - self.computed

    def append(self, token: int) -> None:
        """A token was drawn."""
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
