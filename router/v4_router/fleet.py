"""All workers of one router: which take requests, what they can do together, and which of them a prompt runs on."""

from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass

from v4_core.blocks import BLOCK_TOKENS, hit_limit
from v4_core.token import TokenFile
from v4_router.background import Background
from v4_router.endpoints import WorkerEndpoint, by_address
from v4_router.errors import Unavailable
from v4_router.placement import Placement, place
from v4_router.policy import Policy
from v4_router.room_queue import RoomQueue
from v4_router.workers import WorkerLink, blocks_needed

Kind = tuple[str, str]  # revision and fingerprint


@dataclass(frozen=True, slots=True)
class AdmissionLimits:
    """What every worker that takes requests can serve; a request beyond it is refused."""

    max_model_len: int  # tokens of prompt and output together
    vocab_size: int
    sequences: int  # at once, on the largest decode worker; 0 = not reported yet


@dataclass(frozen=True, slots=True)
class RoomRequest:
    """A cache that waits for a decode worker with room."""

    tokens: int
    choices: int
    avoid: Collection[str]  # workers that do not count as a reason to wait on
    grant: Callable[[str], None]  # called once, with the worker that has room
    give_up: Callable[[], None]  # called when no worker is left that could have room; may be called again


class Fleet:
    """The links to all workers. The methods never block, and must be called on the same event loop."""

    def __init__(
        self, policy: Policy, connect_timeout_seconds: float, token: TokenFile | None = None, tokenizer: str = ""
    ) -> None:
        """`tokenizer`: digest of the router's tokenizer; workers with another one get no request."""
        self.policy = policy
        self.links: dict[str, WorkerLink] = {}  # of the listed workers, by address
        self.prefill: list[WorkerLink] = []
        self.decode: list[WorkerLink] = []
        self._timeout = connect_timeout_seconds
        self._token = token
        self._tokenizer = tokenizer
        self._turn = 0
        self._background: Background | None = None
        self.room_queue: RoomQueue[Hashable, Kind, RoomRequest] = RoomQueue()
        self._decoding: set[WorkerLink] = set()  # while the queue is not empty: decode workers that take requests

    def update(self, endpoints: Iterable[WorkerEndpoint]) -> None:
        """Replaces the list of workers. One that is no longer listed gets no new leg; what runs there continues."""
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
                link.on_change = self._worker_changed
                if self._background is not None:
                    self._background.start(link.run())
        self.prefill = [link for link in self.links.values() if link.role == "prefill"]
        self.decode = [link for link in self.links.values() if link.role == "decode"]
        self._decoding = {link for link in self.decode if link.usable}
        for kind in self.room_queue.kinds():
            self._offer_room(kind)
            self._give_up_where_none_is_left(kind)

    def begin(self, background: Background) -> None:
        """Keeps all links connected, also later ones, until `background` ends; this ends all legs on the workers."""
        self._background = background
        for link in self.links.values():
            background.start(link.run())

    def pairs(self) -> set[Kind]:
        """Returns the kinds of which both a prefill and a decode worker take requests."""
        return {link.kind for link in self.prefill if link.usable} & {link.kind for link in self.decode if link.usable}

    def can_serve(self) -> bool:
        """Whether a new request finds the workers that the policy demands."""
        if self.policy.without_prefill == "refuse":
            return bool(self.pairs())
        return any(link.usable for link in self.decode)

    def shortage(self) -> Unavailable:
        """Returns the error for a prompt that no worker can take."""
        if self.policy.without_prefill == "refuse" and any(link.usable for link in self.decode):
            return Unavailable("no prefill worker is up, and decode workers may not compute prompts: try again later")
        return Unavailable("no worker is up: try again later")

    def limits(self) -> AdmissionLimits:
        """Returns the limits now. Raises Unavailable while no worker takes requests."""
        links = [link for link in self.links.values() if link.usable]
        if not links:
            raise self.shortage()
        return AdmissionLimits(
            min(link.info.max_model_len for link in links),
            min(link.info.vocab_size for link in links),
            max((link.load.tails_total for link in self.decode if link.usable), default=0),
        )

    def place(
        self, names: Sequence[bytes], tokens: int, avoid: Collection[str], fingerprint: str | None
    ) -> Placement | None:
        """Chooses workers for a prompt of so many tokens, whose complete blocks have these names.

        `fingerprint`: required of the workers, if tokens were emitted before. Returns None if no worker can take it.
        """
        self._turn += 1
        limit = hit_limit(tokens)
        sources = [
            link.view(min(BLOCK_TOKENS * link.prefixes.match(names), limit)) for link in self.prefill if link.usable
        ]
        targets = [link.view() for link in self.decode if link.usable]
        alone = self.policy.without_prefill == "serve"
        return place(tokens, sources, targets, turn=self._turn, avoid=avoid, fingerprint=fingerprint, alone=alone)

    def partner(self, avoid: Collection[str], kind: Kind) -> str | None:
        """Returns the decode worker that is to pull a cache of this kind now, or None."""
        return self._least_busy(link for link in self._partners(kind) if link.address not in avoid)

    def wait_for_room(self, key: Hashable, kind: Kind, request: RoomRequest) -> None:
        """Queues a cache of this kind until a decode worker reports room for it, or until none is left."""
        self.room_queue.join(key, kind, request)
        self._decoding = {link for link in self.decode if link.usable}
        self._offer_room(kind)
        if self.room_queue.kind_of(key) is not None and self.partner(request.avoid, kind) is None:
            request.give_up()

    def stop_waiting(self, key: Hashable, *, keep_place: bool) -> None:
        """Takes `key` out of the queue; with `keep_place`, only until it waits again."""
        kind = self.room_queue.kind_of(key)
        if keep_place:
            self.room_queue.hold(key)
        else:
            self.room_queue.leave(key)
        if kind is not None:
            self._offer_room(kind)  # the next one may need less room

    def _worker_changed(self, link: WorkerLink) -> None:
        """Serves the queue after a worker reported its load, appeared or left."""
        if link.role != "decode" or not self.room_queue:
            return
        if link.usable and self.links.get(link.address) is link:
            self._decoding.add(link)
            self._offer_room(link.kind)
        elif link in self._decoding:
            self._decoding.discard(link)
            self._give_up_where_none_is_left(link.kind)

    def _offer_room(self, kind: Kind) -> None:
        while (first := self.room_queue.first(kind)) is not None:
            request = first.item
            blocks = blocks_needed(request.tokens, request.choices)
            worker = self._least_busy(link for link in self._partners(kind) if link.has_room(blocks, request.choices))
            if worker is None:
                return
            self.room_queue.hold(first.key)
            request.grant(worker)

    def _give_up_where_none_is_left(self, kind: Kind) -> None:
        for waiting in self.room_queue.waiting(kind):
            if self.partner(waiting.item.avoid, kind) is None:
                waiting.item.give_up()

    def _partners(self, kind: Kind) -> list[WorkerLink]:
        return [link for link in self.decode if link.usable and link.kind == kind]

    def _least_busy(self, links: Iterable[WorkerLink]) -> str | None:
        placement = place(0, (), [link.view() for link in links], turn=self._turn)
        return None if placement is None else placement.decode
