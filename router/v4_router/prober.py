"""Proofs that workers work, before any request is sent there: each new worker makes tokens with one that is proven.

A decode worker without a proven prefill worker of its kind makes two tokens alone; a prefill worker's token always goes
through a transfer and a decode worker. A worker that came back as another process is proven anew.
"""

import asyncio
import logging
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from v4_core.fingerprint import difference
from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb
from v4_router.background import Background
from v4_router.fleet import Fleet
from v4_router.metrics import Metrics
from v4_router.workers import Leg, WorkerLink

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05  # between two looks for workers to prove
_PAUSE_SECONDS = (0.05, 1.0)  # first and longest before a worker is tried again
_START_SECONDS = 10.0  # for a proven prefill worker to begin; a longer queue says nothing of decode
_TIMEOUT_SECONDS = 60.0  # the first step on a worker may compile

_Heard = tuple[WorkerLink, pb.Event | None]


class ProbeFailed(Exception):
    """No token came through; `link` is where it ended."""

    def __init__(self, link: WorkerLink, message: str) -> None:
        super().__init__(f"probe of {link.role} worker {link.address}: {message}")
        self.link = link


class Prober:
    """Keeps every worker proven that may be."""

    def __init__(self, fleet: Fleet, metrics: Metrics, token: int, background: Background) -> None:
        """`token`: the id of the one-token prompt."""
        self._fleet = fleet
        self._metrics = metrics
        self._prompt = token.to_bytes(4, "little")
        self._background = background
        self.paired = False  # a token once went through prefill, transfer and decode
        self._busy: set[WorkerLink] = set()

    async def run(self) -> None:
        """Prove workers as they come, all at once, until cancelled."""
        while True:
            for link in self._fleet.links.values():
                if link.open and not link.probed and link not in self._busy:
                    self._busy.add(link)
                    self._background.start(self._prove(link))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _prove(self, link: WorkerLink) -> None:
        pause, longest = _PAUSE_SECONDS
        try:
            while link.open and not link.probed:
                if await self._tried(link):
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
        finally:
            self._busy.discard(link)

    async def _tried(self, link: WorkerLink) -> bool:
        """One attempt; whether the worker is proven by it."""
        began = time.perf_counter()
        try:
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                done = await (self._prefill(link) if link.role == "prefill" else self._decode(link))
        except ProbeFailed as error:
            if str(error) != link.error:
                log.warning("%s", error)
            link.error = str(error)
            self._metrics.probe_failures.labels(link.role).inc()
            return False
        except TimeoutError:
            link.error = f"probe of {link.role} worker {link.address}: no token within {_TIMEOUT_SECONDS:g} s"
            log.warning("%s", link.error)
            self._metrics.probe_failures.labels(link.role).inc()
            return False
        link.error = ""
        if done:
            self._metrics.probe_seconds.observe(time.perf_counter() - began)
            link.probed = True
            log.info("%s worker %s takes requests", link.role, link.address)
        return done

    async def _prefill(self, link: WorkerLink) -> bool:
        """False while there is nobody to decode for it. Raises ProbeFailed where all who are there may not."""
        partner = self._proven(self._fleet.decode, link)
        if partner is not None:
            await self._pair(link, partner)
            return True
        revision, own = link.kind
        if any(other.open and other.kind == link.kind for other in self._fleet.decode):
            return False  # one is there, and is about to be proven
        for other in self._fleet.decode:
            if other.usable and other.endpoint.revision == revision:
                raise ProbeFailed(
                    link,
                    f"no decode worker can continue its state: it and {other.address} differ in "
                    f"{difference(own, other.info.fingerprint)}; give all workers of a revision one checkpoint and "
                    "one set of options",
                )
        return False

    async def _decode(self, link: WorkerLink) -> bool:
        source = self._proven(self._fleet.prefill, link)
        if source is not None:
            try:
                await self._pair(source, link)
                return True
            except ProbeFailed as error:
                if error.link is link:
                    raise
        await self._alone(link)  # prefill's trouble is not decode's
        return True

    def _proven(self, links: list[WorkerLink], other: WorkerLink) -> WorkerLink | None:
        usable = [link for link in links if link.usable and link.kind == other.kind]
        return random.choice(usable) if usable else None

    async def _alone(self, link: WorkerLink) -> None:
        heard: asyncio.Queue[_Heard] = asyncio.Queue()
        with _dropped([self._send(link, self._start(pb.WHOLE), heard)]):
            while not _finished(await _next(heard)):
                pass

    async def _pair(self, prefill: WorkerLink, decode: WorkerLink) -> None:
        """A token from prefill, its cache to decode, and one more from there."""
        heard: asyncio.Queue[_Heard] = asyncio.Queue()
        start = self._start(pb.PREFILL)
        legs = [self._send(prefill, start, heard)]
        with _dropped(legs):
            start.source.address, start.source.lease = prefill.address, await _lease(heard, prefill)
            start.phase = pb.DECODE
            legs.append(self._send(decode, start, heard))
            adopted = False
            event = pb.Event()
            while not (adopted and _finished(event)):
                event = await _next(heard)
                if event.HasField("adopted"):
                    adopted = True
                    self._metrics.transferred(event.adopted, decode.endpoint.revision)
        self.paired = True

    def _start(self, kind: pb.Phase) -> pb.Start:
        return pb.Start(
            request=f"probe-{random.getrandbits(64):016x}",
            phase=kind,
            prompt_ids=self._prompt,
            n=1,
            max_tokens=2,  # the first comes from prefill, the second from decode
            ignore_eos=True,
            sampling=Sampling(temperature=0.0).to_proto(),
            deadline_ms=int(1000 * _TIMEOUT_SECONDS),
        )

    @staticmethod
    def _send(link: WorkerLink, start: pb.Start, heard: asyncio.Queue[_Heard]) -> Leg:
        sent = pb.Start()
        sent.CopyFrom(start)
        return link.start(sent, 1, lambda event: heard.put_nowait((link, event)))


@contextmanager
def _dropped(legs: list[Leg]) -> Iterator[None]:
    """Ends the legs with the context; on their workers too, unless all has come through."""
    cancel: int | None = 0
    try:
        yield
        cancel = None
    finally:
        for leg in legs:
            leg.link.drop(leg, cancel)


async def _next(heard: asyncio.Queue[_Heard]) -> pb.Event:
    """Raises ProbeFailed if a leg ended."""
    link, event = await heard.get()
    if event is None:
        raise ProbeFailed(link, "the worker was lost")
    if event.HasField("failed"):
        raise ProbeFailed(link, f"{pb.Reason.Name(event.failed.reason)}: {event.failed.message}")
    return event


async def _lease(heard: asyncio.Queue[_Heard], prefill: WorkerLink) -> int:
    with suppress(TimeoutError):
        async with asyncio.timeout(_START_SECONDS):
            while True:
                event = await _next(heard)
                if event.HasField("started"):
                    return event.started.lease
    raise ProbeFailed(prefill, f"did not begin within {_START_SECONDS:g} s")


def _finished(event: pb.Event) -> bool:
    return event.HasField("tokens") and event.tokens.finish == pb.LENGTH
