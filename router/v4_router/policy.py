"""The router's policy: limits and choices that may be changed while the router runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from v4_core.errors import ConfigError
from v4_core.settings import Setting, load

_LONGEST_OVERLAP_SECONDS = 86_400.0
_LONGEST_SECONDS = 30 * 86_400.0  # of a request; the workers' protocol has milliseconds in 32 bits


@dataclass(frozen=True)
class Policy:
    """Limits and choices. Raises ConfigError if a value cannot be used."""

    request_timeout_seconds: Annotated[
        float, Setting("Seconds from a request's arrival to its last token; at most 2592000 (30 days).", None)
    ] = 3600.0
    max_requests: Annotated[
        int, Setting("Concurrent requests; further ones get 429. 0: as many as the workers accept.", None)
    ] = 0
    without_prefill: Annotated[
        Literal["serve", "refuse"],
        Setting("Without a prefill worker: serve lets decode workers compute prompts, refuse answers 503.", None),
    ] = "serve"
    on_transfer_failure: Annotated[
        Literal["recompute", "fail"],
        Setting(
            "If a cache cannot be transferred: recompute the prompt, or fail with 503 or with an error event.", None
        ),
    ] = "recompute"
    log_prompts: Annotated[bool, Setting("Whether the log line of a request contains its prompts.", None)] = False
    key_overlap_seconds: Annotated[
        float,
        Setting("Seconds that an API key stays valid after its removal from the file `api_keys`; at most 86400.", None),
    ] = 300.0

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
