"""When the tokens of one request reached the router's edge: metrics, and the figures a client may ask for."""

from collections.abc import Callable
from typing import Any

from v4_router.metrics import Metrics
from v4_router.output import Delta


class Timing:
    """One request, from its arrival on."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float]) -> None:
        """`clock` gives seconds."""
        self._metrics = metrics
        self._clock = clock
        self._arrived = clock()
        self._ttft: float | None = None
        self._latest: dict[int, float] = {}  # time of each choice's latest token
        self._gaps = 0
        self._waited = 0.0

    def add(self, deltas: list[Delta]) -> None:
        """Tokens that came just now."""
        now = self._clock()
        if self._ttft is None:
            self._ttft = now - self._arrived
            self._metrics.ttft.observe(self._ttft)
        for delta in deltas:
            if count := len(delta.ids):
                if (before := self._latest.get(delta.choice)) is not None:
                    self._gaps += count
                    self._waited += now - before
                    self._metrics.itl.observe((now - before) / count)
                self._latest[delta.choice] = now

    def end(self) -> None:
        """The last token was sent."""
        self._metrics.duration.observe(self._clock() - self._arrived)

    def body(self) -> dict[str, Any]:
        """Seconds: to the first token, and between tokens of a choice on average."""
        return {"ttft_seconds": self._ttft, "itl_seconds": self._waited / self._gaps if self._gaps else None}
