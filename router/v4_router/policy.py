"""The router's policy: limits and choices that may be changed while the router runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from v4_core.errors import ConfigError
from v4_core.settings import load

_LONGEST_OVERLAP_SECONDS = 86_400.0
_LONGEST_SECONDS = 30 * 86_400.0  # of a request; the workers' protocol has milliseconds in 32 bits


@dataclass(frozen=True)
class Policy:
    """Limits and choices. Raises ConfigError if a value cannot be used."""

    request_timeout_seconds: float = 3600.0  # deadline of a request, from its arrival to the last token
    max_requests: int = 0  # requests at once; more get 429. 0 = no limit of the router's own
    without_prefill: Literal["serve", "refuse"] = "serve"  # with no prefill worker up: decode computes prompts, or 503
    on_transfer_failure: Literal["recompute", "fail"] = "recompute"  # if the cache cannot be moved to decode
    log_prompts: bool = False  # whether a request's log line contains its prompts
    key_overlap_seconds: float = 300.0  # how long an API key stays valid after its removal from the file

    def __post_init__(self) -> None:
        if not 0 < (timeout := self.request_timeout_seconds) <= _LONGEST_SECONDS:
            raise ConfigError(
                f"request_timeout_seconds is {timeout}: give more than 0 and at most {_LONGEST_SECONDS:.0f}"
            )
        if self.max_requests < 0:
            raise ConfigError(f"max_requests is {self.max_requests}: give 0 for no limit, or a positive number")
        if not 0 <= (overlap := self.key_overlap_seconds) <= _LONGEST_OVERLAP_SECONDS:
            raise ConfigError(
                f"key_overlap_seconds is {overlap}: give a number between 0 and {_LONGEST_OVERLAP_SECONDS:.0f}"
            )


def read_policy(file: Path) -> Policy:
    """Returns the policy in a YAML file, with defaults for keys that the file does not have. Raises ConfigError."""
    return load(Policy, file, {})
