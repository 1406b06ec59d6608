"""The log line that is written at the end of every request. It has no prompt unless it is given one."""

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
    """A request that has ended."""

    request_id: str  # the client's `x-request-id`, or one made by the router
    id: str  # the id that workers and the answer use; empty if the request failed before it got one
    endpoint: str  # completions | chat | other
    outcome: str  # ok | client_gone | cancelled | HTTP status of the error
    tenant: str  # empty if the router has no API keys
    trace_id: str = ""  # empty if tracing is off
    prompts: Sequence[str] = ()  # as text; empty unless the policy logs prompts
    error: RouterError | None = None  # the error that the client got, if any


def write(ended: Ended, times: Breakdown, exchange: Exchange | None) -> None:
    """Writes the line. `exchange` is None if the request failed before it was placed."""
    if log.isEnabledFor(logging.INFO):
        fields = facts(ended, times, exchange)
        prompts = "" if not ended.prompts or writes_json() else f"; prompts {json.dumps(ended.prompts)}"
        log.info("%s%s", sentence(fields), prompts, extra={"fields": fields})


def facts(ended: Ended, times: Breakdown, exchange: Exchange | None) -> dict[str, Value]:
    """Returns the fields of a JSON log line, leaving out those that do not apply to the request."""
    found: dict[str, Value | None] = {
        "request_id": ended.request_id,
        "id": ended.id or None,
        "endpoint": ended.endpoint,
        "outcome": ended.outcome,
        "tenant": ended.tenant or None,
        "trace_id": ended.trace_id or None,
        "prompts": ended.prompts or None,
        **(_error(ended.error) if ended.error else {}),
        **times.body(),
    }
    if exchange is not None:
        flows = exchange.flows
        found |= {
            "prompt_tokens": sum(len(flow.request.prompt) // 4 for flow in flows),
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


def _error(error: RouterError) -> dict[str, Value | None]:
    """Returns the error's code and the field at fault, but nothing that may quote the request's body."""
    return {"error": error.code or error.kind, "param": None if isinstance(error, UnknownField) else error.param}


def _each(names: Iterable[str]) -> str | None:
    """Returns the distinct names, comma-separated, leaving out "-"; None if none is left."""
    return ",".join(dict.fromkeys(name for name in names if name != "-")) or None


def sentence(fields: Mapping[str, Value]) -> str:
    """Returns the text of a log line for people, without the prompts."""
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
