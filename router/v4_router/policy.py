"""What a router does where a client's wish and the workers' good differ. May change while it runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from v4_core.errors import ConfigError
from v4_core.settings import load

_LONGEST_OVERLAP_SECONDS = 86_400.0
_LONGEST_SECONDS = 30 * 86_400.0  # of a request; workers count milliseconds in 32 bits


@dataclass(frozen=True)
class Policy:
    """Limits and choices. Raises ConfigError on values that cannot be used."""

    request_timeout_seconds: float = 3600.0  # from arrival to the last token
    max_requests: int = 0  # at once; more get 429. 0 = as many as the workers take
    without_prefill: Literal["serve", "refuse"] = "serve"  # no prefill worker left: decode computes prompts, or 503
    on_transfer_failure: Literal["recompute", "fail"] = "recompute"  # of a cache's way from prefill to decode
    log_prompts: bool = False  # the line of a request in the log has its prompt too
    key_overlap_seconds: float = 300.0  # that a key which vanished from the file of keys is still good

    def __post_init__(self) -> None:
        if not 0 < self.request_timeout_seconds <= _LONGEST_SECONDS:
            raise ConfigError(f"request_timeout_seconds must be greater than 0 and at most {_LONGEST_SECONDS:.0f}")
        if self.max_requests < 0:
            raise ConfigError("max_requests must not be negative; 0 = no limit")
        if not 0 <= self.key_overlap_seconds <= _LONGEST_OVERLAP_SECONDS:
            raise ConfigError(f"key_overlap_seconds must be between 0 and {_LONGEST_OVERLAP_SECONDS:.0f}")


def read_policy(file: Path) -> Policy:
    """The policy in a YAML file; what it does not name keeps its default. Raises ConfigError."""
    return load(Policy, file, {})
