"""The sampling parameters of a request.

A sampled token depends only on these parameters, the prompt's ids and the output's ids so far.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from v4_core.v1 import worker_pb2 as pb


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of one request. The router checks the ranges of users' values."""

    temperature: float = 1.0  # 0 = greedy
    top_k: int = 0  # 0 = off
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0  # uint64
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    logprobs: int | None = None  # alternatives to report beside each sampled token's own; None = no logprobs

    def to_proto(self) -> pb.Sampling:
        """Returns the message of the worker protocol."""
        return pb.Sampling(**vars(self))

    @classmethod
    def from_proto(cls, message: pb.Sampling) -> "Sampling":
        """Reads the message of the worker protocol."""
        return cls(
            temperature=message.temperature,
            top_k=message.top_k,
            top_p=message.top_p,
            min_p=message.min_p,
            seed=message.seed,
            presence_penalty=message.presence_penalty,
            frequency_penalty=message.frequency_penalty,
            repetition_penalty=message.repetition_penalty,
            logit_bias=dict(message.logit_bias),
            logprobs=message.logprobs if message.HasField("logprobs") else None,
        )
