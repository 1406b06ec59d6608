"""The loop of one client request: its flows, one per prompt, and what the client reads of each choice.

Everything that happens to the request, a worker's event, the deadline, the client's leaving, comes through one queue
as a note; so nothing here runs at the same time as anything else.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NoReturn

from v4_router.errors import ClientGone, DeadlineExceeded
from v4_router.fleet import Fleet
from v4_router.flow import Flow
from v4_router.generation import Generation, Note
from v4_router.output import ChoiceOutput, Delta
from v4_router.timing import Timing


class Exchange:
    """Runs some prompts. `close` must be called at the end, whatever that was: it frees what the workers hold."""

    def __init__(
        self, prompts: Sequence[Generation], outputs: Sequence[ChoiceOutput], fleet: Fleet, timing: Timing
    ) -> None:
        """`outputs`: one per choice, prompt by prompt. The deadline is the first prompt's."""
        self.outputs = outputs
        self._n = prompts[0].n
        self.flows = [Flow(p, fleet, timing, self, first=i * self._n) for i, p in enumerate(prompts)]
        self._loop = asyncio.get_running_loop()
        self._notes: asyncio.Queue[Note] = asyncio.Queue()
        self._deadline = prompts[0].deadline
        self._timer = self._loop.call_at(self._deadline, self.post, _time_over)

    def post(self, note: Note, after_seconds: float = 0.0) -> None:
        """Have a note called in its turn."""
        if after_seconds:
            self._loop.call_later(after_seconds, self._notes.put_nowait, note)
        else:
            self._notes.put_nowait(note)

    def seconds_left(self) -> float:
        """Until the deadline."""
        return self._deadline - self._loop.time()

    def leave(self) -> None:
        """The client is gone."""
        self.post(_client_gone)

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """What the choices grow by, as it comes; ends when all are finished. Raises RouterError."""
        for flow in self.flows:
            flow.begin()
        while any(output.finish is None for output in self.outputs):
            deltas = self._read(await self._notes.get())
            while not self._notes.empty():
                deltas += self._read(self._notes.get_nowait())
            if deltas:
                yield deltas

    def close(self) -> None:
        """End whatever still runs."""
        self._timer.cancel()
        for flow in self.flows:
            flow.close()

    def _read(self, note: Note) -> list[Delta]:
        deltas = []
        for emit in note():
            output = self.outputs[emit.choice]
            if output.finish is None:
                deltas.append(output.push(emit))
                if output.finish is not None:
                    self.flows[emit.choice // self._n].finish(emit.choice % self._n)
        return deltas


def _time_over() -> NoReturn:
    raise DeadlineExceeded("the request's time is over: ask for fewer tokens, or raise request_timeout_seconds")


def _client_gone() -> NoReturn:
    raise ClientGone("the client closed the connection")
