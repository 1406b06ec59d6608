"""Is the service healthy, which pool is the bottleneck, what do prefix caching and transfer do, is the SLO kept?"""

from charts.dashboards.grafana import Row, dashboard, row, typed
from charts.dashboards.panels import Json, Look, Query, bars, lines, stat
from charts.dashboards.promql import (
    LINK,
    SCOPE,
    achieved,
    busiest_link,
    busy,
    mean,
    quantile,
    quantiles,
    rate,
    select,
    tails,
    variables,
)

NAME = "v4serve-overview"
_TTFT, _ITL = "v4serve_time_to_first_token_seconds", "v4serve_inter_token_latency_seconds"
_OBJECTIVE = "max(v4serve:slo_objective)"  # what the rules were given; `max`, since many may have recorded it

_WHOSE = "{{namespace}}/{{deployment}}"
_LATE = {"first": "time_to_first_token_late", "next": "inter_token_late"}  # as recorded, for each deployment


def make() -> Json:
    """The dashboard."""
    return dashboard(
        NAME,
        "v4serve / Overview",
        "Health, bottleneck, what caching and transfer do, and the service level.",
        [*variables(), typed("link", "Link (Gbit/s)", "25")],
        [_health(), _bottleneck(), _caching_and_transfer(), _slo(), _traffic(), _processes()],
    )


def _health() -> Row:
    failed = rate("v4serve_requests_total", 'outcome=~"5..|cancelled"')
    asked = rate("v4serve_requests_total", 'outcome!="client_gone"')
    # Alerts of the operator belong to no deployment.
    scope = 'namespace=~"$namespace", deployment=~"$deployment|"'
    firing = f'ALERTS{{{scope}, alertname=~"V4Serve.*", alertstate="firing"}}'
    routable = f"avg by (role) (max by (role, worker) ({select('v4serve_worker_routable')}))"
    return row(
        "Is it healthy?",
        stat(
            "Answered",
            "What share of requests did the service not fail? Failed are answers 5xx and streams that the router "
            "ended; clients that left are not counted.",
            Look("percentunit", high=1, base="red", steps=((0.99, "orange"), (0.999, "green")), empty="no requests"),
            Query(f"1 - ({failed} or vector(0)) / ({asked} > 0)", "answered"),
        ),
        stat(
            "Alerts",
            "Does any of v4serve's alerts fire? 0 as well where Prometheus has not got their rules.",
            Look("none", steps=((1, "red"),)),
            Query(f"count({firing}) or vector(0)", "firing"),
            width=2,
        ),
        stat(
            "Error budget burn",
            "Is the service level kept? How many times faster than it may the error budget is used up, over the last 5 "
            "minutes, by first tokens and by those after them that come late. Below are their targets.",
            Look("suffix: x", steps=((1, "orange"), (14.4, "red"))),
            *(Query(f"max({_late(name, '5m')}) / (1 - scalar({_OBJECTIVE}))", text) for text, name in _LATE.items()),
            width=4,
        ),
        stat(
            "First token, p99",
            "How long do clients wait for the first token? 99 of 100 wait no longer.",
            Look("s", base="text", empty="no requests"),
            Query(quantile(99, _TTFT), "p99"),
        ),
        stat(
            "Next token, p99",
            "How smooth are streams? 99 of 100 gaps between tokens are no longer.",
            Look("s", base="text", empty="no tokens"),
            Query(quantile(99, _ITL), "p99"),
        ),
        stat(
            "Requests",
            "How much is asked?",
            Look("reqps", base="text"),
            Query(rate("v4serve_requests_total"), "requests"),
        ),
        stat(
            "Generated tokens",
            "How much is answered, in tokens per second?",
            Look("suffix: tok/s", base="text"),
            Query(rate("v4serve_generated_tokens_total"), "tokens"),
        ),
        stat(
            "Workers available",
            "Can a request be placed? What share of each role's workers takes requests. With none of a role, prompts "
            "are computed by decode workers, or nothing is served.",
            Look("percentunit", high=1, base="red", steps=((0.001, "orange"), (1, "green")), empty="no workers"),
            Query(routable, "{{role}}"),
        ),
    )


def _bottleneck() -> Row:
    slots = f"max by (role) ({select('v4serve_block_slots_used_ratio')})"
    waiting = 'state="waiting", role="prefill"'
    return row(
        "Which pool is the bottleneck?",
        bars(
            "How full is each resource?",
            "What runs out first? The longest bar is the bottleneck. Compute: share of time in which workers of a "
            "pool are in a step. Cache: block slots in use in the fullest worker. Sequences: live tails in use. Link: "
            "what the busiest worker sends or receives, of the link named above.",
            Look("percentunit", high=1, steps=((0.75, "orange"), (0.9, "red"))),
            Query(busy('role=~"prefill|decode"'), "{{role}} compute"),
            Query(slots, "{{role}} cache"),
            Query(tails(), "{{role}} sequences"),
            Query(f"{busiest_link()} / ({LINK})", "link"),
        ),
        lines(
            "Where a request's time goes",
            "Which stage makes requests slow? Mean seconds of a request in the queue, in prefill until its first "
            "token, and in decode after it. Means, so that they add up; percentiles are below.",
            Look("s", colors={"queue": "orange", "prefill": "blue", "decode": "green"}),
            Query(mean("v4serve_request_queue_seconds"), "queue"),
            Query(mean("v4serve_request_prefill_seconds"), "prefill"),
            Query(mean("v4serve_request_decode_seconds"), "decode"),
            stacked=True,
        ),
        lines(
            "What waits",
            "Where does a queue grow? Prompts wait for a prefill worker, finished caches for room on a decode worker, "
            "sequences on decode workers for memory.",
            Look("short"),
            Query(f"sum({select('v4serve_sequences', waiting)})", "prompts for prefill"),
            Query(f"sum({select('v4serve_requests_waiting_for_room')})", "caches for room"),
            Query(f"sum({select('v4serve_sequences', waiting.replace('prefill', 'decode'))})", "sequences for decode"),
        ),
    )


def _caching_and_transfer() -> Row:
    cached, prompts = rate("v4serve_cached_prompt_tokens_total"), rate("v4serve_prompt_tokens_total")
    saved, moved = rate("v4serve_transfer_saved_bytes_total"), rate("v4serve_transfer_bytes_total")
    return row(
        "What do prefix caching and transfer do?",
        lines(
            "Prompt tokens",
            "How much of the prompts must be computed? What is cached costs no prefill.",
            Look("suffix: tok/s", colors={"cached": "green", "computed": "blue"}),
            Query(cached, "cached"),
            Query(f"{prompts} - {cached}", "computed"),
            stacked=True,
        ),
        lines(
            "Saved work",
            "What do caches save? Prompt tokens not computed again, and bytes not transferred again because the "
            "decode worker had them.",
            Look("percentunit", high=1),
            Query(f"{cached} / ({prompts} > 0)", "of prompt tokens"),
            Query(f"{saved} / ({saved} + {moved} > 0)", "of bytes"),
        ),
        lines(
            "Transfer against the link",
            "Is the network the limit? While moving: bytes per second of a transfer, without its waiting for prefill. "
            "Busiest worker: what it sends or receives, pauses included. Near the link, transfers wait for each other.",
            Look("Bps", low=None, colors={"link": "red"}, log=True),
            Query(achieved(), "while moving"),
            Query(busiest_link(), "busiest worker"),
            Query(f"vector({LINK})", "link"),
        ),
    )


def _slo() -> Row:
    target = {"target": "red"}
    return row(
        "Is the service level kept?",
        lines(
            "First token",
            "How long until the first token?",
            Look("s", colors=target),
            *quantiles(_TTFT),
            Query("max(v4serve:slo_time_to_first_token_seconds)", "target"),
        ),
        lines(
            "Next token",
            "How long between tokens?",
            Look("s", colors=target),
            *quantiles(_ITL),
            Query("max(v4serve:slo_inter_token_seconds)", "target"),
        ),
        lines(
            "Whole request",
            "How long until the last token? Depends on how long answers are.",
            Look("s"),
            *quantiles("v4serve_request_duration_seconds"),
        ),
        lines(
            "Within target",
            "What share of first tokens, and of the tokens after them, came within their targets over 5 minutes? "
            "Requests that the service failed before a token count as late. Targets and objective are those that the "
            "rules were given.",
            Look("percentunit", low=None, high=1, colors={"objective": "red"}, empty="no requests"),
            *(Query(f"1 - {_late(name, '5m')}", f"{_WHOSE}: {text} token") for text, name in _LATE.items()),
            Query(_OBJECTIVE, "objective"),
            width=12,
        ),
        lines(
            "How fast the error budget burns",
            "Will the objective be missed? 1 = what is too late uses up exactly what may be. 14.4 for an hour "
            "is a fiftieth of a month's budget, and the usual point to wake somebody.",
            Look("suffix: x", steps=((1, "orange"), (14.4, "red"))),
            *(
                Query(f"{_late(name, window)} / (1 - scalar({_OBJECTIVE}))", f"{_WHOSE}: {text} token, {window}")
                for text, name in _LATE.items()
                for window in ("5m", "1h")
            ),
            width=12,
        ),
    )


def _late(name: str, window: str) -> str:
    """Share of what came too late, as the alerts see it."""
    return f"v4serve:{name}:ratio_rate{window}{{{SCOPE}}}"


def _traffic() -> Row:
    return row(
        "Traffic",
        lines(
            "Requests by outcome",
            "How do requests end? Numbers are HTTP statuses: 4xx the client's fault, 429 and 503 too much at once.",
            Look("reqps", colors={"ok": "green", "client_gone": "text", "/^4/": "orange", "/^5|cancelled/": "red"}),
            Query(rate("v4serve_requests_total", by="outcome"), "{{outcome}}"),
            stacked=True,
        ),
        lines(
            "Repairs",
            "What goes wrong without clients seeing it? Legs placed again, prompts computed again, streams continued "
            "on another worker.",
            Look("cps"),
            Query(rate("v4serve_retries_total"), "retries"),
            Query(rate("v4serve_recomputations_total"), "recomputations"),
            Query(rate("v4serve_migrations_total"), "migrations"),
        ),
        lines(
            "Requests running",
            "How many requests does each router serve now?",
            Look("short"),
            Query(f"sum by (pod) ({select('v4serve_requests_running')})", "{{pod}}"),
        ),
        lines(
            "Length of prompts",
            "How long is what clients send, in tokens?",
            Look("suffix: tok"),
            *quantiles("v4serve_request_prompt_tokens"),
        ),
        lines(
            "Length of answers",
            "How long is what clients get, in tokens?",
            Look("suffix: tok"),
            *quantiles("v4serve_request_generated_tokens"),
        ),
        lines(
            "Finish reasons",
            "Do answers come to their own end? Length: cut off at the most that they may have. Abort: the client left. "
            "Error: the request failed before them.",
            Look("cps", colors={"stop": "green", "length": "blue", "abort": "text", "error": "red"}),
            Query(rate("v4serve_choices_total", by="reason"), "{{reason}}"),
            stacked=True,
        ),
    )


def _processes() -> Row:
    return row(
        "Processes",
        lines(
            "CPU",
            "Which process is short of CPU, the router above all? In cores.",
            Look("suffix: cores"),
            Query(rate("process_cpu_seconds_total", by="pod"), "{{pod}}"),
            width=12,
        ),
        lines(
            "Memory",
            "Does a process grow?",
            Look("bytes"),
            Query(f"sum by (pod) ({select('process_resident_memory_bytes')})", "{{pod}}"),
            width=12,
        ),
    )
