"""What the parent of forked processes imports and does before it forks: all that every start would do again.

It must not have started a thread, nor opened a gRPC channel or server, when it forks.
"""

import importlib

import torch

from tests.engine.harness import make_engine
from v4_core.sampling import Sampling
from v4_engine.generate import output_ids
from v4_engine.sequence import Request

_IMPORTED = ("v4_cli.main", "v4_prefill.main", "v4_decode.main", "v4_router.server", "v4_router.detokenizer", "httpx")


def _warm() -> None:
    """Import everything and load the compiled operators."""
    torch.set_num_threads(1)
    for name in _IMPORTED:
        importlib.import_module(name)
    prompt = [(7 * i) % 380 + 2 for i in range(600)]
    output_ids(make_engine(), Request(("warm", 0), "whole", prompt, max_tokens=4, sampling=Sampling(temperature=0.0)))


_warm()
