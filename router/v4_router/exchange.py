"""The loop of one client request: it runs one flow per prompt, and yields what is added to each choice.

Everything that happens to the request, such as an event of a worker, the deadline or the client's disconnect, is a note
in one queue. The notes are handled one after another, so no two of them run concurrently.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NoReturn

from v4_router.errors import ClientGone, DeadlineExceeded
from v4_router.fleet import Fleet
from v4_router.flow import Flow
from v4_router.generation import GenerationRequest, Note
from v4_router.output import ChoiceOutput, Delta
from v4_router.timing import Timing


class Exchange:
    """Runs the prompts of one request.

    `close` must always be called at the end, since it releases what the workers hold for the request.
    """

    def __init__(
        self, prompts: Sequence[GenerationRequest], outputs: Sequence[ChoiceOutput], fleet: Fleet, timing: Timing
    ) -> None:
        """`outputs`: one per choice, prompt by prompt. All prompts have the same deadline."""
        self.outputs = outputs
        self._n = prompts[0].n
        self.flows = [Flow(p, fleet, timing, self, first=i * self._n) for i, p in enumerate(prompts)]
        self._loop = asyncio.get_running_loop()
        self._notes: asyncio.Queue[Note] = asyncio.Queue()
        self._deadline = prompts[0].deadline
        self._timer = self._loop.call_at(self._deadline, self.post, _deadline_exceeded)

    def post(self, note: Note, after_seconds: float = 0.0) -> None:
        """Adds a note to the queue, after a delay if one is given."""
        if after_seconds:
            self._loop.call_later(after_seconds, self._notes.put_nowait, note)
        else:
            self._notes.put_nowait(note)

    def seconds_left(self) -> float:
        """Returns the seconds until the deadline."""
        return self._deadline - self._loop.time()

    def leave(self) -> None:
        """Ends the request because the client has disconnected."""
        self.post(_client_gone)

    async def deltas(self) -> AsyncIterator[list[Delta]]:
        """Yields what is added to the choices until all of them are finished. Raises RouterError."""
        for flow in self.flows:
            flow.begin()
        while any(output.finish is None for output in self.outputs):
            deltas = self._read(await self._notes.get())
            while not self._notes.empty():
                deltas += self._read(self._notes.get_nowait())
            if deltas:
                yield deltas

    def close(self) -> None:
        """Ends the flows that still run."""
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


def _deadline_exceeded() -> NoReturn:
    raise DeadlineExceeded(
        "the request exceeded its deadline: ask for fewer tokens, or raise request_timeout_seconds in the router's "
        "policy"
    )


def _client_gone() -> NoReturn:
    raise ClientGone("the client closed the connection")
