"""Offline generation with one engine and no network. Tests compare a deployment's answers with it."""

from collections.abc import Iterable, Iterator

from v4_engine.engine import Engine
from v4_engine.errors import CapacityError, EngineError
from v4_engine.events import Broken, Token
from v4_engine.sequence import Request


def generate(engine: Engine, requests: Iterable[Request]) -> Iterator[Token]:
    """Run whole requests together and yield their tokens as they are sampled. Raises RequestError or EngineError."""
    for request in requests:
        if not engine.submit(request):
            most = engine.scheduler.config.max_waiting
            raise CapacityError(f"there are more than {most} requests at once: raise max_waiting")
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Broken):
                raise EngineError(event.message)
            if isinstance(event, Token):
                yield event


def output_ids(engine: Engine, request: Request) -> list[list[int]]:
    """Return the output ids of every choice of one request, in the order of the choices."""
    outputs: list[list[int]] = [[] for _ in range(request.n)]
    for token in generate(engine, [request]):
        outputs[token.choice - request.first_choice].append(token.drawn.id)
    return outputs
