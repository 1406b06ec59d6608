"""All workers of one router: what they can do together, and placing a prompt on them."""

import asyncio
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from v4_core.blocks import BLOCK_TOKENS, hit_limit
from v4_router.config import RouterConfig
from v4_router.errors import Unavailable
from v4_router.placement import Placement, place
from v4_router.workers import WorkerLink

if TYPE_CHECKING:
    from v4_router.flow import Flow


@dataclass(frozen=True, slots=True)
class Limits:
    """What every worker that is up can serve."""

    max_model_len: int  # tokens of prompt and output together
    vocab_size: int
    sequences: int  # at once, on the largest decode worker; 0 = none has said yet


class Fleet:
    """The links to all workers, by address."""

    def __init__(self, config: RouterConfig) -> None:
        timeout = config.connect_timeout_seconds
        self.prefill = [WorkerLink(a, "prefill", timeout) for a in config.prefill]
        self.decode = [WorkerLink(a, "decode", timeout) for a in config.decode]
        self.links = {link.address: link for link in self.prefill + self.decode}
        self._turn = 0
        # Flows whose caches wait for room on a decode worker, the longest waiting first.
        self.line: dict[Flow, None] = {}

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps every link up within the context; its end is the end of everything started on the workers."""
        tasks = [asyncio.create_task(link.run()) for link in self.links.values()]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def can_serve(self) -> bool:
        """Whether a request that comes now finds a worker."""
        return any(link.usable for link in self.decode)

    def limits(self) -> Limits:
        """Raises Unavailable while no worker is up."""
        infos = [link.info for link in self.links.values() if link.up]
        if not infos:
            raise Unavailable("no worker is up: try again later")
        return Limits(
            min(i.max_model_len for i in infos),
            min(i.vocab_size for i in infos),
            max((link.load.tails_total for link in self.decode if link.up), default=0),
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
        return place(tokens, sources, targets, turn=self._turn, avoid=avoid, fingerprint=fingerprint)

    def room(self, tokens: int, choices: int, fingerprint: str) -> str | None:
        """A decode worker that has room now, by its own report, for a cache of this fingerprint."""
        blocks = -(-tokens // BLOCK_TOKENS) + choices
        targets = [link.view() for link in self.decode if link.usable and link.has_room(blocks, choices)]
        placement = place(0, (), targets, turn=self._turn, fingerprint=fingerprint)
        return None if placement is None else placement.decode

    def partner(self, avoid: Collection[str], fingerprint: str) -> str | None:
        """A decode worker that can take over a cache of this fingerprint."""
        self._turn += 1
        targets = [link.view() for link in self.decode if link.usable]
        placement = place(0, (), targets, turn=self._turn, avoid=avoid, fingerprint=fingerprint)
        return None if placement is None else placement.decode
