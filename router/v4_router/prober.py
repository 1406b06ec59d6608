"""Probes of workers: each new worker generates two tokens, together with a proven one, before it gets any request.

A decode worker without a proven prefill worker of its kind generates them alone; a prefill worker's probe always goes
through a transfer to a proven decode worker. A worker that restarts as another process is probed again.
"""

import asyncio
import logging
import random
import time
from functools import partial

from v4_core.fingerprint import difference
from v4_core.sampling import Sampling
from v4_core.v1 import worker_pb2 as pb
from v4_router import actions, events
from v4_router.advance import advance
from v4_router.background import Background
from v4_router.choice_group import ChoiceGroup, Prompt, RemoteLeg
from v4_router.fleet import Fleet
from v4_router.generation import GenerationRequest
from v4_router.metrics import Metrics
from v4_router.placement import LEAST_QUEUED, Placement
from v4_router.start_message import start_message
from v4_router.workers import WorkerLink

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.05  # between two searches for workers to probe
_PAUSE_SECONDS = (0.05, 1.0)  # first and longest pause before a worker is probed again
_START_SECONDS = 10.0  # for a proven prefill worker to begin; a longer queue there says nothing about decode
_TIMEOUT_SECONDS = 60.0  # the first step on a worker may compile


class ProbeFailed(Exception):
    """A probe failed on the worker `link`."""

    def __init__(self, link: WorkerLink, message: str) -> None:
        super().__init__(f"probe of {link.role} worker {link.address}: {message}")
        self.link = link


class Prober:
    """Probes every worker that is connected and not proven yet."""

    def __init__(self, fleet: Fleet, metrics: Metrics, token: int, background: Background) -> None:
        """`token`: the id of the one-token prompt."""
        self._fleet = fleet
        self._metrics = metrics
        self._prompt = token.to_bytes(4, "little")
        self._background = background
        self.paired = False  # a probe has passed through prefill, transfer and decode
        self._busy: set[WorkerLink] = set()

    async def run(self) -> None:
        """Probes new workers concurrently, until cancelled."""
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
                if await self._probe(link):
                    return
                await asyncio.sleep(pause)
                pause = min(2 * pause, longest)
        finally:
            self._busy.discard(link)

    async def _probe(self, link: WorkerLink) -> bool:
        """Runs one probe. Returns whether it proved the worker."""
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
            link.prove()
            log.info("%s worker %s takes requests", link.role, link.address)
        return done

    async def _prefill(self, link: WorkerLink) -> bool:
        """Returns False until there is a proven decode worker. Raises ProbeFailed if none could continue its caches."""
        partner = self._proven(self._fleet.decode, link)
        if partner is not None:
            await self._run(link, partner)
            return True
        revision, own = link.kind
        if any(other.open and other.kind == link.kind for other in self._fleet.decode):
            return False  # a decode worker of its kind is about to be proven
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
                await self._run(source, link)
                return True
            except ProbeFailed as error:
                if error.link is link:
                    raise
        await self._run(None, link)  # a failure of the prefill worker says nothing about this one
        return True

    def _proven(self, links: list[WorkerLink], other: WorkerLink) -> WorkerLink | None:
        usable = [link for link in links if link.usable and link.kind == other.kind]
        return random.choice(usable) if usable else None

    async def _run(self, prefill: WorkerLink | None, decode: WorkerLink) -> None:
        """Raises ProbeFailed or TimeoutError."""
        await _Probe(self._prompt, prefill, decode, self._metrics).run()
        self.paired |= prefill is not None


class _Probe:
    """One probe: a request for two tokens on given workers, which ends at the first failure."""

    def __init__(self, prompt: bytes, prefill: WorkerLink | None, decode: WorkerLink, metrics: Metrics) -> None:
        request = GenerationRequest(
            id=f"probe-{random.getrandbits(64):016x}",
            prompt=prompt,
            n=1,
            max_tokens=2,  # the first comes from prefill, the second from decode
            ignore_eos=True,
            sampling=Sampling(temperature=0.0),
            deadline=asyncio.get_running_loop().time() + _TIMEOUT_SECONDS,
        )
        self._group = ChoiceGroup(Prompt(request), request.id, (0,))
        self._prefill = prefill
        self._decode = decode
        self._metrics = metrics
        self._began = prefill is None  # prefill admitted the request
        self._failure = ""  # what a worker said of its failed leg
        self._finish: str | None = None
        self._error: ProbeFailed | None = None
        self._inbox: asyncio.Queue[tuple[RemoteLeg, pb.Event | None]] = asyncio.Queue()

    async def run(self) -> None:
        """Raises ProbeFailed."""
        try:
            self._advance(events.Begin(), self._prefill or self._decode)
            if self._prefill is not None:
                await self._begin(self._prefill)
            while not self._group.over:
                await self._next()
            if self._prefill is not None and not self._group.adopted:
                raise ProbeFailed(self._decode, "it sent tokens without adopting the cache")
            if self._finish != "length":
                raise ProbeFailed(self._decode, f"it ended after {self._finish} instead of two tokens")
        finally:
            for action in advance(self._group, events.Closed()):
                self._perform(action, self._decode)

    async def _begin(self, prefill: WorkerLink) -> None:
        try:
            async with asyncio.timeout(_START_SECONDS):
                while not self._began:
                    await self._next()
        except TimeoutError:
            raise ProbeFailed(prefill, f"did not begin within {_START_SECONDS:g} s") from None

    async def _next(self) -> None:
        leg, message = await self._inbox.get()
        link = self._link(leg)
        if (event := events.leg_event(leg, message, link.role)) is not None:
            self._advance(event, link)

    def _link(self, leg: RemoteLeg) -> WorkerLink:
        return self._prefill if leg.phase == pb.PREFILL and self._prefill is not None else self._decode

    def _advance(self, event: events.Event, link: WorkerLink) -> None:
        """`link`: the worker to blame if the probe fails now. Raises ProbeFailed after all actions are performed."""
        for action in advance(self._group, event):
            self._perform(action, link)
        if self._error is not None:
            raise self._error

    def _perform(self, action: actions.Action, link: WorkerLink) -> None:
        match action:
            case actions.DropLeg(leg, cancel):
                self._link(leg).drop(leg.request, leg.attempt, cancel)
            case _ if self._error is not None:
                pass  # after a failure, legs are dropped and nothing else is done
            case actions.Place():
                prefill = None if self._prefill is None else self._prefill.address
                self._advance(events.Placed(Placement(prefill, self._decode.address, LEAST_QUEUED)), link)
            case actions.FindPartner():
                self._advance(events.PartnerFound(self._decode.address), link)
            case actions.StartLeg(leg):
                start = start_message(self._group, action, _TIMEOUT_SECONDS)
                deliver = partial(self._deliver, leg)
                self._link(leg).start(start, action.uncached_tokens, deliver)
            case actions.EmitTokens():
                self._finish = action.finish or self._finish
            case actions.LegBegan():
                self._began = True
            case actions.RecordTransfer(leg, adopted):
                self._metrics.transferred(adopted, self._link(leg).endpoint.revision)
            case actions.RecordFailure(_, reason, message):
                lost = reason == events.LOST
                self._failure = "the worker was lost" if lost else f"{pb.Reason.Name(reason)}: {message}"
            case actions.CountRetry() | actions.WaitForRoom() | actions.Split():
                self._error = ProbeFailed(link, self._failure or "the worker gave the request back")
            case actions.Fail(error):
                self._error = ProbeFailed(link, self._failure or str(error))

    def _deliver(self, leg: RemoteLeg, message: pb.Event | None) -> None:
        self._inbox.put_nowait((leg, message))
