"""The state of a worker process, and what it answers to health probes."""

from typing import Final, Literal, get_args

State = Literal["loading", "ready", "draining", "failed"]
STATES: Final[tuple[State, ...]] = get_args(State)

_NOT_READY: dict[State, str] = {
    "loading": "the model is being loaded",
    "ready": "",
    "draining": "this worker is draining: it will stop soon",
    "failed": "the engine failed",
}


class Condition:
    """The state of this process. The state `failed` is final."""

    def __init__(self) -> None:
        self._state: State = "loading"

    @property
    def state(self) -> State:
        """The present state."""
        return self._state

    def become(self, state: State) -> None:
        """Change to another state, unless this worker has failed."""
        if self._state != "failed":
            self._state = state

    @property
    def not_ready(self) -> str:
        """The reason why the worker accepts no requests; empty if it accepts them."""
        return _NOT_READY[self._state]

    @property
    def failed(self) -> str:
        """The reason why the process cannot continue; empty if it can."""
        return self.not_ready if self._state == "failed" else ""
