"""In which of four states a worker process is, and what it says of that to whoever probes it."""

from typing import Final, Literal, get_args

State = Literal["loading", "ready", "draining", "failed"]
STATES: Final[tuple[State, ...]] = get_args(State)

_NOT_READY: dict[State, str] = {
    "loading": "the model is being loaded",
    "ready": "",
    "draining": "this worker drains: it is about to stop",
    "failed": "the engine failed",
}


class Condition:
    """One state at a time, changed while it is served. Who has failed stays so."""

    def __init__(self) -> None:
        self._state: State = "loading"

    @property
    def state(self) -> State:
        """The state now."""
        return self._state

    def become(self, state: State) -> None:
        """Change to another state, unless this worker failed."""
        if self._state != "failed":
            self._state = state

    @property
    def not_ready(self) -> str:
        """Why no requests should come; empty = they may."""
        return _NOT_READY[self._state]

    @property
    def failed(self) -> str:
        """Why the process cannot go on; empty = it can."""
        return self.not_ready if self._state == "failed" else ""
