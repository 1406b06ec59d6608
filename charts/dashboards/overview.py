"""Overview: health, the bottleneck, the effects of prefix caching and transfer, and the service level."""

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
_OBJECTIVE = "max(v4serve:slo_objective)"  # as configured in the rules; `max` because several rule groups may record it

_WHOSE = "{{namespace}}/{{deployment}}"
_LATE = {"first": "time_to_first_token_late", "next": "inter_token_late"}  # names of recorded series, per deployment


def make() -> Json:
    """The dashboard."""
    return dashboard(
        NAME,
        "v4serve / Overview",
        "Health, the bottleneck, the effects of prefix caching and transfer, and the service level.",
        [*variables(), typed("link", "Link (Gbit/s)", "25")],
        [_health(), _bottleneck(), _caching_and_transfer(), _slo(), _traffic(), _processes()],
    )


def _health() -> Row:
    failed = rate("v4serve_requests_total", 'outcome=~"5..|cancelled"')
    asked = rate("v4serve_requests_total", 'outcome!="client_gone"')
    # The operator's alerts have no deployment label.
    scope = 'namespace=~"$namespace", deployment=~"$deployment|"'
    firing = f'ALERTS{{{scope}, alertname=~"V4Serve.*", alertstate="firing"}}'
    routable = f"avg by (role) (max by (role, worker) ({select('v4serve_worker_routable')}))"
    return row(
        "Is it healthy?",
        stat(
            "Answered",
            "What share of requests did the service not fail? A request fails if its answer is a 5xx status or the "
            "router ends its stream. Requests whose client disconnected are not counted.",
            Look("percentunit", high=1, base="red", steps=((0.99, "orange"), (0.999, "green")), empty="no requests"),
            Query(f"1 - ({failed} or vector(0)) / ({asked} > 0)", "answered"),
        ),
        stat(
            "Alerts",
            "How many of v4serve's alerts are firing? Also 0 if Prometheus has not loaded their rules.",
            Look("none", steps=((1, "red"),)),
            Query(f"count({firing}) or vector(0)", "firing"),
            width=2,
        ),
        stat(
            "Error budget burn",
            "Is the SLO kept? How fast late first tokens and late next tokens used up the error budget during the "
            "last 5 minutes, as a multiple of the rate that the SLO allows. The panels below show the targets.",
            Look("suffix: x", steps=((1, "orange"), (14.4, "red"))),
            *(Query(f"max({_late(name, '5m')}) / (1 - scalar({_OBJECTIVE}))", text) for text, name in _LATE.items()),
            width=4,
        ),
        stat(
            "First token, p99",
            "How long do clients wait for the first token? 99 % of requests wait no longer.",
            Look("s", base="text", empty="no requests"),
            Query(quantile(99, _TTFT), "p99"),
        ),
        stat(
            "Next token, p99",
            "How smooth are streams? 99 % of the gaps between tokens are no longer.",
            Look("s", base="text", empty="no tokens"),
            Query(quantile(99, _ITL), "p99"),
        ),
        stat(
            "Requests",
            "How many requests arrive per second?",
            Look("reqps", base="text"),
            Query(rate("v4serve_requests_total"), "requests"),
        ),
        stat(
            "Generated tokens",
            "How many tokens are generated per second?",
            Look("suffix: tok/s", base="text"),
            Query(rate("v4serve_generated_tokens_total"), "tokens"),
        ),
        stat(
            "Workers available",
            "Can requests be placed? The share of each role's workers that accept requests. Without prefill workers, "
            "decode workers compute the prompts, unless the policy refuses this; without decode workers, nothing is "
            "served.",
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
            "Which resource runs out first? The longest bar is the bottleneck. Compute: share of time that a pool's "
            "workers spend in steps. Cache: used block slots of the fullest worker. Sequences: used live tails. Link: "
            "send plus receive rate of the busiest worker, as a share of the link rate set at the top.",
            Look("percentunit", high=1, steps=((0.75, "orange"), (0.9, "red"))),
            Query(busy('role=~"prefill|decode"'), "{{role}} compute"),
            Query(slots, "{{role}} cache"),
            Query(tails(), "{{role}} sequences"),
            Query(f"{busiest_link()} / ({LINK})", "link"),
        ),
        lines(
            "Where a request's time goes",
            "Which stage makes requests slow? Mean seconds that a request spends in the queue, in prefill until its "
            "first token, and in decode after it. Means are shown because they add up; percentiles are below.",
            Look("s", colors={"queue": "orange", "prefill": "blue", "decode": "green"}),
            Query(mean("v4serve_request_queue_seconds"), "queue"),
            Query(mean("v4serve_request_prefill_seconds"), "prefill"),
            Query(mean("v4serve_request_decode_seconds"), "decode"),
            stacked=True,
        ),
        lines(
            "What waits",
            "Which queue grows? Prompts wait for a prefill worker, finished caches for room on a decode worker, and "
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
            "How many prompt tokens must be computed? Cached tokens need no prefill.",
            Look("suffix: tok/s", colors={"cached": "green", "computed": "blue"}),
            Query(cached, "cached"),
            Query(f"{prompts} - {cached}", "computed"),
            stacked=True,
        ),
        lines(
            "Saved work",
            "How much work do caches save? The share of prompt tokens that were not computed again, and the share of "
            "bytes that were not transferred because the decode worker already had them.",
            Look("percentunit", high=1),
            Query(f"{cached} / ({prompts} > 0)", "of prompt tokens"),
            Query(f"{saved} / ({saved} + {moved} > 0)", "of bytes"),
        ),
        lines(
            "Transfer against the link",
            "Is the network the limit? While moving: bytes per second of a transfer, without the time that it waits "
            "for prefill. Busiest worker: its send plus receive rate, pauses included. Close to the link rate, "
            "transfers wait for each other.",
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
            "How long do clients wait for the first token?",
            Look("s", colors=target),
            *quantiles(_TTFT),
            Query("max(v4serve:slo_time_to_first_token_seconds)", "target"),
        ),
        lines(
            "Next token",
            "How long are the gaps between tokens?",
            Look("s", colors=target),
            *quantiles(_ITL),
            Query("max(v4serve:slo_inter_token_seconds)", "target"),
        ),
        lines(
            "Whole request",
            "How long does a request take until its last token? This depends on the length of the answers.",
            Look("s"),
            *quantiles("v4serve_request_duration_seconds"),
        ),
        lines(
            "Within target",
            "What share of first tokens and of later tokens met their targets over 5 minutes? A request that the "
            "service failed before its first token counts as late. The targets and the objective are the ones "
            "configured in the recording rules.",
            Look("percentunit", low=None, high=1, colors={"objective": "red"}, empty="no requests"),
            *(Query(f"1 - {_late(name, '5m')}", f"{_WHOSE}: {text} token") for text, name in _LATE.items()),
            Query(_OBJECTIVE, "objective"),
            width=12,
        ),
        lines(
            "How fast the error budget burns",
            "Will the objective be missed? At 1, late tokens use up exactly the error budget. A rate of 14.4 for one "
            "hour uses up a fiftieth of a month's budget and is the usual threshold for paging someone.",
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
    """Share of tokens that missed their target, from the recorded series that the alerts use."""
    return f"v4serve:{name}:ratio_rate{window}{{{SCOPE}}}"


def _traffic() -> Row:
    return row(
        "Traffic",
        lines(
            "Requests by outcome",
            "How do requests end? Numbers are HTTP statuses: 4xx means an error of the client; 429 and 503 mean "
            "overload.",
            Look("reqps", colors={"ok": "green", "client_gone": "text", "/^4/": "orange", "/^5|cancelled/": "red"}),
            Query(rate("v4serve_requests_total", by="outcome"), "{{outcome}}"),
            stacked=True,
        ),
        lines(
            "Repairs",
            "Which failures do clients not notice? Retried legs, prompts computed again, and streams continued on "
            "another worker.",
            Look("cps"),
            Query(rate("v4serve_retries_total"), "retries"),
            Query(rate("v4serve_recomputations_total"), "recomputations"),
            Query(rate("v4serve_migrations_total"), "migrations"),
        ),
        lines(
            "Requests running",
            "How many requests does each router currently serve?",
            Look("short"),
            Query(f"sum by (pod) ({select('v4serve_requests_running')})", "{{pod}}"),
        ),
        lines(
            "Length of prompts",
            "How many tokens do prompts have?",
            Look("suffix: tok"),
            *quantiles("v4serve_request_prompt_tokens"),
        ),
        lines(
            "Length of answers",
            "How many tokens do answers have?",
            Look("suffix: tok"),
            *quantiles("v4serve_request_generated_tokens"),
        ),
        lines(
            "Finish reasons",
            "Why do answers end? stop: the model ended the answer or a stop sequence occurred. length: the answer "
            "reached its maximum length. abort: the client disconnected. error: the request failed.",
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
            "Which process is short of CPU, in particular which router? In cores.",
            Look("suffix: cores"),
            Query(rate("process_cpu_seconds_total", by="pod"), "{{pod}}"),
            width=12,
        ),
        lines(
            "Memory",
            "Does the memory of a process grow?",
            Look("bytes"),
            Query(f"sum by (pod) ({select('process_resident_memory_bytes')})", "{{pod}}"),
            width=12,
        ),
    )
