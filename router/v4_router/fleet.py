"""All workers of one router: who is there now, what they can do together, and placing a prompt on them."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from v4_core.blocks import BLOCK_TOKENS, hit_limit
from v4_core.token import TokenFile
from v4_router.background import Background
from v4_router.endpoints import WorkerEndpoint, by_address
from v4_router.errors import Unavailable
from v4_router.placement import Placement, place
from v4_router.policy import Policy
from v4_router.workers import WorkerLink

if TYPE_CHECKING:
    from v4_router.flow import Flow


@dataclass(frozen=True, slots=True)
class Limits:
    """What every worker that takes requests can serve."""

    max_model_len: int  # tokens of prompt and output together
    vocab_size: int
    sequences: int  # at once, on the largest decode worker; 0 = none has said yet


class Fleet:
    """The links to all workers. Its methods belong to one event loop; none of them waits."""

    def __init__(
        self, policy: Policy, connect_timeout_seconds: float, token: TokenFile | None = None, tokenizer: str = ""
    ) -> None:
        """`tokenizer`: its digest; workers with another one get no request."""
        self.policy = policy
        self.links: dict[str, WorkerLink] = {}  # of all that are listed now, by address
        self.prefill: list[WorkerLink] = []
        self.decode: list[WorkerLink] = []
        self._timeout = connect_timeout_seconds
        self._token = token
        self._tokenizer = tokenizer
        self._turn = 0
        self._background: Background | None = None
        # Flows whose caches wait for room on a decode worker, the longest waiting first.
        self.line: dict[Flow, None] = {}

    def update(self, endpoints: Iterable[WorkerEndpoint]) -> None:
        """These are the workers now. Who is no longer listed gets no new leg; what runs there goes on."""
        listed = by_address(endpoints)
        for address, link in list(self.links.items()):
            now = listed.get(address)
            if now is not None and (now.uid, now.role) == (link.endpoint.uid, link.role):
                link.endpoint = now
                continue
            del self.links[address]
            link.retire()
        for address, endpoint in listed.items():
            if address not in self.links:
                link = self.links[address] = WorkerLink(endpoint, self._timeout, self._token, self._tokenizer)
                if self._background is not None:
                    self._background.start(link.run())
        self.prefill = [link for link in self.links.values() if link.role == "prefill"]
        self.decode = [link for link in self.links.values() if link.role == "decode"]

    def begin(self, background: Background) -> None:
        """Keep every link up, later ones too, until the background ends, and with it all that runs on the workers."""
        self._background = background
        for link in self.links.values():
            background.start(link.run())

    def pairs(self) -> set[tuple[str, str]]:
        """Kinds of which a prefill and a decode worker take requests."""
        return {link.kind for link in self.prefill if link.usable} & {link.kind for link in self.decode if link.usable}

    def can_serve(self) -> bool:
        """Whether a request that comes now finds workers, as the policy wants them."""
        if self.policy.without_prefill == "refuse":
            return bool(self.pairs())
        return any(link.usable for link in self.decode)

    def shortage(self) -> Unavailable:
        """Why a prompt finds no place."""
        if self.policy.without_prefill == "refuse" and any(link.usable for link in self.decode):
            return Unavailable("no prefill worker is left, and decode workers compute no prompts: try again later")
        return Unavailable("no worker is up: try again later")

    def limits(self) -> Limits:
        """Raises Unavailable while no worker takes requests."""
        links = [link for link in self.links.values() if link.usable]
        if not links:
            raise self.shortage()
        return Limits(
            min(link.info.max_model_len for link in links),
            min(link.info.vocab_size for link in links),
            max((link.load.tails_total for link in self.decode if link.usable), default=0),
        )

    def place(
        self, names: Sequence[bytes], tokens: int, avoid: Collection[str], fingerprint: str | None
    ) -> Placement | None:
        """Placement of a prompt of so many tokens whose complete blocks have these names."""
        self._turn += 1
        limit = hit_limit(tokens)
        sources = [
            link.view(min(BLOCK_TOKENS * link.prefixes.match(names), limit)) for link in self.prefill if link.usable
        ]
        targets = [link.view() for link in self.decode if link.usable]
        alone = self.policy.without_prefill == "serve"
        return place(tokens, sources, targets, turn=self._turn, avoid=avoid, fingerprint=fingerprint, alone=alone)

    def room(self, tokens: int, choices: int, kind: tuple[str, str]) -> str | None:
        """A decode worker that has room now, by its own report, for a cache of this kind."""
        blocks = -(-tokens // BLOCK_TOKENS) + choices
        return self._target(link for link in self._partners(kind) if link.has_room(blocks, choices))

    @property
    def waiting_for_room(self) -> int:
        """Flows with a cache that waits for a decode worker now."""
        return sum(flow.looks_for_room for flow in self.line)

    def partner(self, avoid: Collection[str], kind: tuple[str, str]) -> str | None:
        """The decode worker that takes over a cache of this kind now."""
        return self._target(link for link in self._partners(kind) if link.address not in avoid)

    def _partners(self, kind: tuple[str, str]) -> list[WorkerLink]:
        return [link for link in self.decode if link.usable and link.kind == kind]

    def _target(self, links: Iterable[WorkerLink]) -> str | None:
        placement = place(0, (), [link.view() for link in links], turn=self._turn)
        return None if placement is None else placement.decode
