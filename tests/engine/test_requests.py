"""Requests that the engine refuses, and what it does when the model gives NaN."""

import pytest

from tests.engine.harness import GREEDY, Run, damage, make_engine, prompt, request
from v4_core.errors import RequestError
from v4_core.sampling import Sampling
from v4_engine.errors import EngineError
from v4_engine.events import Broken
from v4_engine.generate import output_ids
from v4_engine.sequence import Phase, Request


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        (request([]), "no tokens"),
        (request([512]), "vocabulary of 512"),
        (request([5], sampling=Sampling(logit_bias={512: 1.0})), "logit_bias"),
        (request([5], sampling=Sampling(logit_bias={-1: 1.0})), "logit_bias"),
        (request([5], n=0), "n is 0"),
        (request([5], max_tokens=0), "max_tokens is 0"),
        (Request(("r", 0), "whole", [5], output=[6], n=2), "n is 2"),
    ],
)
def test_refused(asked: Request, text: str) -> None:
    engine = make_engine()
    with pytest.raises(RequestError, match=text):
        engine.submit(asked)
    with pytest.raises(RequestError, match=text):
        engine.reserve(asked)
    assert not engine.busy


def test_the_same_request_twice_is_refused() -> None:
    engine = make_engine()
    engine.submit(request(prompt(10)))
    with pytest.raises(RequestError, match="already on this worker"):
        engine.submit(request(prompt(10)))
    assert engine.reserve(request(prompt(300), "d", "decode")) is not None
    with pytest.raises(RequestError, match="already on this worker"):
        engine.reserve(request(prompt(300), "d", "decode"))


@pytest.mark.parametrize("phase", ["whole", "prefill"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_nan_gives_no_token(phase: Phase, temperature: float) -> None:
    engine = make_engine()
    damage(engine)
    engine.submit(request(prompt(300), phase=phase, n=2, sampling=Sampling(temperature=temperature)))
    events = []
    while engine.busy:
        events += engine.step()
        engine.scheduler.check_integrity()
    assert [type(e) for e in events if isinstance(e, Broken)] == [Broken]
    if phase == "prefill":  # a prefill request is dropped by its owner
        assert engine.drop(("r", 0))
    assert not engine.pool.tree.nodes, "none of its blocks is cached"


def test_offline_generation_raises_on_nan() -> None:
    engine = make_engine()
    damage(engine)
    with pytest.raises(EngineError, match="NaN or infinite"):
        output_ids(engine, request(prompt(10)))


def test_penalties_and_bias_through_the_engine_and_after_preemption() -> None:
    sampling = Sampling(temperature=0.0, frequency_penalty=0.7, repetition_penalty=1.3, logit_bias={9: 1.0})
    alone = Run(make_engine()).until_idle(request(prompt(300), max_tokens=60, sampling=sampling)).ids()
    plain = Run(make_engine()).until_idle(request(prompt(300), max_tokens=60, sampling=GREEDY)).ids()
    assert alone != plain
    continued = Request(("r", 0), "whole", prompt(300), output=alone[:25], max_tokens=60, sampling=sampling)
    assert Run(make_engine()).until_idle(continued).ids() == alone[25:]
