"""When the tokens of one request reached the router's edge: metrics, and where the request's time went."""

from collections.abc import Callable
from dataclasses import dataclass

from v4_router.metrics import Metrics
from v4_router.output import Delta
from v4_router.pace import Awaited, Pace
from v4_router.placement import Placement


@dataclass(frozen=True, slots=True)
class Breakdown:
    """Where the time of a request went, in seconds; None = it did not come so far."""

    ttft_seconds: float | None  # arrival to first token
    itl_seconds: float | None  # between tokens of a choice, on average
    queue_seconds: float | None  # arrival until a worker began
    prefill_seconds: float | None  # from then until the first token
    decode_seconds: float | None  # first to last token
    total_seconds: float  # arrival until now

    def body(self) -> dict[str, float | None]:
        """As a client that asks for it is told."""
        return {name: getattr(self, name) for name in self.__slots__}


class Timing:
    """One request, from its arrival on."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self.metrics = metrics
        self.now = clock
        self._arrived = clock()
        self._began: float | None = None
        self._first: float | None = None
        self._last = 0.0
        self._latest: dict[int, float] = {}  # time of each choice's latest token
        self._gaps = 0
        self._waited = 0.0

    def began(self) -> None:
        """A worker began with a prompt of the request; the first one counts."""
        if self._began is None:
            self._began = self.now()
            self.metrics.queue.observe(self._began - self._arrived)

    def add(self, deltas: list[Delta]) -> None:
        """Tokens that came just now."""
        metrics, now, tokens = self.metrics, self.now(), 0
        for delta in deltas:
            if count := len(delta.ids):
                tokens += count
                if (before := self._latest.get(delta.choice)) is not None:
                    self._gaps += count
                    self._waited += now - before
                    metrics.itl.observe((now - before) / count)
                self._latest[delta.choice] = now
        if tokens:
            metrics.generated_tokens.inc(tokens)
            if self._first is None:
                self._came(now)
            self._last = now

    def _came(self, now: float) -> None:
        self._first = now
        self.metrics.ttft.observe(now - self._arrived)
        if self._began is not None:
            self.metrics.prefill.observe(now - self._began)

    def end(self) -> None:
        """The last token was sent."""
        self.metrics.duration.observe(self.now() - self._arrived)
        if self._first is not None:
            self.metrics.decode.observe(self._last - self._first)

    def breakdown(self) -> Breakdown:
        """As far as it is known now."""
        began, first = self._began, self._first
        return Breakdown(
            ttft_seconds=None if first is None else first - self._arrived,
            itl_seconds=self._waited / self._gaps if self._gaps else None,
            queue_seconds=None if began is None else began - self._arrived,
            prefill_seconds=None if began is None or first is None else first - began,
            decode_seconds=None if first is None else self._last - first,
            total_seconds=self.now() - self._arrived,
        )


class PromptTiming:
    """One prompt of a request: its placements, when a worker began with it, when its first token was expected."""

    def __init__(self, request: Timing, tokens: int) -> None:
        """`tokens`: of the prompt."""
        self._request = request
        self._metrics = request.metrics
        self._tokens = tokens
        self._begun = False

    def placed(self, reason: str, placement: Placement) -> None:
        """A placement was chosen."""
        self._metrics.placements.labels(reason).inc()
        if placement.elsewhere_tokens:
            self._metrics.elsewhere.inc(placement.elsewhere_tokens)

    def sent(self, placement: Placement, tokens: int, pace: Pace) -> Awaited:
        """So many tokens go to a prefill worker of that pace; what its first token is awaited with."""
        uncached = tokens - placement.cached_tokens
        awaited = Awaited(pace, placement.queued_tokens, uncached, self._request.now())
        if (expected := awaited.expect()) is not None:
            self._metrics.estimated_ttft.observe(expected)
        return awaited

    def began(self, cached_tokens: int) -> None:
        """A worker began, and had so many of the prompt's tokens; the first one counts."""
        if not self._begun:
            self._begun = True
            self._request.began()
            self._metrics.prompt_tokens.inc(self._tokens)
            self._metrics.cached_tokens.inc(cached_tokens)

    def came(self, awaited: Awaited) -> None:
        """The awaited token is here."""
        if (error := awaited.came(self._request.now())) is not None:
            self._metrics.ttft_error.observe(error)
