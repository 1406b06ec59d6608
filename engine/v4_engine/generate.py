"""Offline generation: one engine, both roles in one, no network: what a deployment's answers are compared with."""

from collections.abc import Iterable, Iterator

from v4_engine.engine import Engine
from v4_engine.errors import CapacityError, EngineError
from v4_engine.events import Broken, Token
from v4_engine.sequence import Request


def generate(engine: Engine, requests: Iterable[Request]) -> Iterator[Token]:
    """Run whole requests together and yield their tokens as they are drawn. Raises RequestError, EngineError."""
    for request in requests:
        if not engine.submit(request):
            raise CapacityError(f"more than {engine.scheduler.config.max_waiting} requests at once: raise max_waiting")
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Broken):
                raise EngineError(event.message)
            if isinstance(event, Token):
                yield event


def output_ids(engine: Engine, request: Request) -> list[list[int]]:
    """Output ids of every choice of one request, in order of choice."""
    outputs: list[list[int]] = [[] for _ in range(request.n)]
    for token in generate(engine, [request]):
        outputs[token.choice - request.first_choice].append(token.drawn.id)
    return outputs
