"""Routing and prefix cache: quality of placement, and hits and misses of cached prefixes."""

from charts.dashboards.grafana import Row, dashboard, row
from charts.dashboards.panels import Json, Look, Query, heatmap, lines, stat, table
from charts.dashboards.promql import quantile, quantiles, rate, select, variables

NAME = "v4serve-routing"
_REAL, _ESTIMATED = "v4serve_time_to_first_token_seconds", "v4serve_estimated_time_to_first_token_seconds"
_PREFIX, _CACHED = "v4serve_prefix_tokens_total", 'state="cached"'
_RESULTS = {
    "hit": ("hit", "green"),
    "replayed": ("replayed", "yellow"),
    "no_checkpoint": ("no checkpoint", "orange"),
    "evicted": ("evicted", "red"),
    "no_blocks": ("never seen", "blue"),
}


def make() -> Json:
    """The dashboard."""
    return dashboard(
        NAME,
        "v4serve / Routing and prefix cache",
        "Where requests are placed, how accurate the router's estimates are, and which prefixes hit or miss the cache.",
        variables(),
        [_placement(), _prefixes(), _workers()],
    )


def _placement() -> Row:
    placed = rate("v4serve_placed_tokens_total", by="role, worker")
    routable = f"max by (role, worker) ({select('v4serve_worker_routable')})"
    asked = rate("v4serve_prompt_tokens_total")
    return row(
        "Is work placed well?",
        lines(
            "Placements by reason",
            "Why are requests placed on their workers? prefix: the worker has the beginning of the prompt cached; "
            "least-queued: the worker has the least queued work; all other reasons are fallbacks.",
            Look("cps"),
            Query(rate("v4serve_placements_total", by="reason"), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Hottest worker's share",
            "Is load spread evenly, or does prefix affinity concentrate it on one worker? The share of placed tokens "
            "that the most loaded worker receives, next to an equal share.",
            Look("percentunit", high=1),
            Query(f"max by (role) ({placed}) / (sum by (role) ({placed}) > 0)", "hottest {{role}}"),
            Query(f"1 / (sum by (role) ({routable}) > 0)", "fair {{role}}"),
        ),
        lines(
            "Tokens placed, by worker",
            "How many tokens are placed on each worker?",
            Look("suffix: tok/s"),
            Query(placed, "{{role}} {{worker}}"),
        ),
        lines(
            "First token: estimated and real",
            "How well does the router predict the time to the first token? Placement is only as good as this estimate.",
            Look("s"),
            *(
                Query(quantile(percent, name), f"{text} p{percent}")
                for text, name in (("estimated", _ESTIMATED), ("real", _REAL))
                for percent in (50, 90, 99)
            ),
        ),
        heatmap(
            "Real over estimated time to first token",
            "By what factor are estimates wrong? 1 is exact; above 1, requests took longer than estimated.",
            "none",
            rate("v4serve_time_to_first_token_error_ratio_bucket", by="le"),
        ),
        lines(
            "Prefix left on another worker",
            "How much cached prefix does placement by load forgo? Prompt tokens that another prefill worker had "
            "cached and the chosen worker had not, as a share of all prompt tokens.",
            Look("percentunit"),
            Query(f"{rate('v4serve_prefix_elsewhere_tokens_total')} / ({asked} > 0)", "had elsewhere"),
        ),
    )


def _prefixes() -> Row:
    slots = f"sum by (pod) ({select('v4serve_block_slots')})"
    admitted, hit = rate(_PREFIX), 'result="hit"'
    return row(
        "Which prompt tokens hit the cache, and why do the others miss?",
        stat(
            "Hit ratio",
            "What share of prompt tokens is cached on the worker that computes them?",
            Look("percentunit", high=1, base="orange", steps=((0.2, "green"),), empty="no prompts"),
            Query(f"{rate(_PREFIX, hit)} / ({admitted} > 0)", "hit"),
            width=4,
            height=8,
        ),
        lines(
            "Prompt tokens: hit and lost",
            "Why are prompt tokens computed? never seen: this worker has not computed this prefix before; evicted: "
            "the worker had the prefix cached but evicted it; no checkpoint: the worker has the blocks but no state "
            "to continue from; replayed: the worker has the blocks but computed the last tokens again to restore "
            "their state. The five shares add up to all prompt tokens.",
            Look("percentunit", high=1, colors=dict(_RESULTS.values())),
            *(
                Query(f"{rate(_PREFIX, _result(result))} / ({admitted} > 0)", text)
                for result, (text, _) in _RESULTS.items()
            ),
            stacked=True,
            width=10,
        ),
        lines(
            "Hit ratio by worker",
            "Does one worker have a lower hit ratio than the others?",
            Look("percentunit", high=1),
            Query(f"{rate(_PREFIX, hit, 'pod')} / ({rate(_PREFIX, by='pod')} > 0)", "{{pod}}"),
            width=10,
        ),
        lines(
            "Evictions",
            "Why are cached blocks and checkpoints evicted? Evictions by the reason for which memory was needed.",
            Look("cps"),
            Query(rate("v4serve_evictions_total", by="what, reason"), "{{what}} for {{reason}}"),
            stacked=True,
            width=12,
        ),
        lines(
            "Cache by worker",
            "How much of each worker's cache holds prefixes that no sequence uses? If this share is 0, the next "
            "prompt evicts prefixes that will soon be used again.",
            Look("percentunit", high=1),
            Query(f"sum by (pod) ({select('v4serve_block_slots', _CACHED)}) / {slots}", "{{pod}}"),
            width=12,
        ),
    )


def _result(result: str) -> str:
    return f'result="{result}"'


def _workers() -> Row:
    seen = f"max by (role, worker) ({select('v4serve_worker_routable')})"
    return row(
        "How do routers see the workers?",
        table(
            "Workers",
            "Which workers take requests, according to at least one router?",
            Look("none", names={0: ("takes none", "red"), 1: ("takes requests", "green")}),
            seen,
            {"role": "Role", "worker": "Worker"},
            "State",
        ),
        lines(
            "Workers heard and used",
            "Is a pool losing workers? Heard: a router is connected to the worker. Used: requests are placed on it.",
            Look("short"),
            Query(f"sum by (role) (max by (role, worker) ({select('v4serve_worker_up')}))", "{{role}} heard"),
            Query(f"sum by (role) ({seen})", "{{role}} used"),
        ),
        lines(
            "Retries by reason",
            "Why are legs retried?",
            Look("cps"),
            Query(rate("v4serve_retries_total", by="role, reason"), "{{role}}: {{reason}}"),
            stacked=True,
        ),
        lines(
            "Probes",
            "How long does the single token of a probe take through prefill, transfer and decode?",
            Look("s"),
            *quantiles("v4serve_probe_seconds"),
            width=12,
        ),
        lines(
            "Probes that failed",
            "Are there workers that accept connections but do not compute?",
            Look("cps"),
            Query(rate("v4serve_probe_failures_total", by="role"), "{{role}}"),
            width=12,
        ),
    )
