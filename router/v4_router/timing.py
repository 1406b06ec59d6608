"""The times of one request, as the router measures them: metrics, and the breakdown of the request's duration."""

from collections.abc import Callable
from dataclasses import dataclass

from v4_router.metrics import Metrics
from v4_router.output import Delta
from v4_router.pace import Awaited, Pace
from v4_router.placement import Placement


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The phases of a request in seconds; None = the request did not get that far."""

    ttft_seconds: float | None  # arrival to first token
    itl_seconds: float | None  # mean time between two tokens of a choice
    queue_seconds: float | None  # arrival until a worker began
    prefill_seconds: float | None  # a worker began until the first token
    decode_seconds: float | None  # first to last token
    total_seconds: float  # arrival until now

    def body(self) -> dict[str, float | None]:
        """Returns the breakdown as the API shows it."""
        return {name: getattr(self, name) for name in self.__slots__}


class Timing:
    """Times of one request, from its arrival on."""

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
        """A worker began with a prompt of the request. Only the first call counts."""
        if self._began is None:
            self._began = self.now()
            self.metrics.queue.observe(self._began - self._arrived)

    def add(self, deltas: list[Delta]) -> None:
        """Records tokens that were received just now."""
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
                self._first_token(now)
            self._last = now

    def _first_token(self, now: float) -> None:
        self._first = now
        self.metrics.ttft.observe(now - self._arrived)
        if self._began is not None:
            self.metrics.prefill.observe(now - self._began)

    def end(self) -> None:
        """Records that the last token was sent."""
        self.metrics.duration.observe(self.now() - self._arrived)
        if self._first is not None:
            self.metrics.decode.observe(self._last - self._first)

    def breakdown(self) -> Breakdown:
        """Returns the times that are known now."""
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
    """Times of one prompt of a request: its placements, when a worker began with it, and its expected first token."""

    def __init__(self, request: Timing, tokens: int) -> None:
        """`tokens`: the length of the prompt."""
        self._request = request
        self._metrics = request.metrics
        self._tokens = tokens
        self._begun = False

    def placed(self, reason: str, placement: Placement) -> None:
        """Counts a placement."""
        self._metrics.placements.labels(reason).inc()
        if placement.elsewhere_tokens:
            self._metrics.elsewhere.inc(placement.elsewhere_tokens)

    def sent(self, placement: Placement, tokens: int, pace: Pace) -> Awaited:
        """Records that `tokens` tokens were sent to a prefill worker of this pace.

        Returns the record to pass to `first_token`.
        """
        uncached = tokens - placement.cached_tokens
        awaited = Awaited(pace, placement.queued_tokens, uncached, self._request.now())
        if (expected := awaited.expect()) is not None:
            self._metrics.estimated_ttft.observe(expected)
        return awaited

    def began(self, cached_tokens: int) -> None:
        """A worker began with the prompt and had `cached_tokens` of it cached. Only the first call counts."""
        if not self._begun:
            self._begun = True
            self._request.began()
            self._metrics.prompt_tokens.inc(self._tokens)
            self._metrics.cached_tokens.inc(cached_tokens)

    def first_token(self, awaited: Awaited) -> None:
        """The first token of a prompt that was sent is received: compares its time with the estimate."""
        if (error := awaited.came(self._request.now())) is not None:
            self._metrics.ttft_error.observe(error)
