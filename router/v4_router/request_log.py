"""The line that every request leaves in the log at its end. Says nothing of what was asked unless it is given that."""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from v4_core.logs import writes_json
from v4_router.errors import RouterError, UnknownField
from v4_router.exchange import Exchange
from v4_router.timing import Breakdown

log = logging.getLogger("v4serve.request")

Value = str | int | float | Sequence[str]


@dataclass(frozen=True)
class Ended:
    """A request at its end."""

    request_id: str  # the client's, or one that was made for it
    id: str  # as workers know it, and as the answer names it; empty where none was made
    endpoint: str  # completions | chat | other
    outcome: str  # ok | client_gone | cancelled | HTTP status of the error
    tenant: str  # empty where no key was asked for
    trace_id: str = ""  # empty where nobody traces
    prompts: Sequence[str] = ()  # as text, if they are to be told
    error: RouterError | None = None  # that the client was told


def write(ended: Ended, times: Breakdown, exchange: Exchange | None) -> None:
    """Write the line; `exchange` is None if the request came to no worker."""
    if log.isEnabledFor(logging.INFO):
        fields = facts(ended, times, exchange)
        prompts = "" if not ended.prompts or writes_json() else f"; prompts {json.dumps(ended.prompts)}"
        log.info("%s%s", sentence(fields), prompts, extra={"fields": fields})


def facts(ended: Ended, times: Breakdown, exchange: Exchange | None) -> dict[str, Value]:
    """All that is known, by name, for programs; what did not come to pass is left out."""
    found: dict[str, Value | None] = {
        "request_id": ended.request_id,
        "id": ended.id or None,
        "endpoint": ended.endpoint,
        "outcome": ended.outcome,
        "tenant": ended.tenant or None,
        "trace_id": ended.trace_id or None,
        "prompts": ended.prompts or None,
        **(_told(ended.error) if ended.error else {}),
        **times.body(),
    }
    if exchange is not None:
        flows = exchange.flows
        found |= {
            "prompt_tokens": sum(len(flow.job.prompt) // 4 for flow in flows),
            "cached_tokens": sum(flow.cached_tokens for flow in flows),
            "generated_tokens": sum(output.tokens for output in exchange.outputs),
            "prefill_worker": _each(flow.pair[0] for flow in flows),
            "decode_worker": _each(flow.pair[1] for flow in flows),
            "retries": sum(flow.retries for flow in flows),
            "finish_reason": _each(output.finish or "-" for output in exchange.outputs),
        }
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in found.items()
        if value is not None
    }


def _told(error: RouterError) -> dict[str, Value | None]:
    """What kind of error, and the field at fault, if there is such a field. Its message may repeat what was asked."""
    return {"error": error.code or error.kind, "param": None if isinstance(error, UnknownField) else error.param}


def _each(names: Iterable[str]) -> str | None:
    """All that differ, without what there is not."""
    return ",".join(dict.fromkeys(name for name in names if name != "-")) or None


def sentence(fields: Mapping[str, Value]) -> str:
    """The same for people, but for prompts."""
    parts = [f"request {fields['request_id']} {fields['endpoint']} {fields['outcome']}"]
    if "error" in fields:
        parts[0] += f" {fields['error']}"
    if "param" in fields:
        parts[0] += f" of {fields['param']!r}"
    if "prompt_tokens" in fields:
        parts.append(
            f"{fields['prompt_tokens']} prompt tokens, {fields['cached_tokens']} of them cached, "
            f"{fields['generated_tokens']} generated"
        )
    names = ("ttft", "queue", "prefill", "decode", "total")
    times = [f"{name} {fields[key]:.3f} s" for name in names if (key := f"{name}_seconds") in fields]
    parts.append(", ".join(times))
    rest = {
        "prefill_worker": "prefill on",
        "decode_worker": "decode on",
        "retries": "retries",
        "finish_reason": "finish",
    }
    parts += [f"{text} {fields[name]}" for name, text in rest.items() if fields.get(name)]
    if "tenant" in fields:
        parts.append(f"tenant {fields['tenant']}")
    return "; ".join(parts)
