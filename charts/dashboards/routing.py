"""Does the router place well, and what is kept and lost of prefixes?"""

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
        "Where requests are placed, how good the router's guesses are, and what is hit and lost of prefixes.",
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
            "Why does a request go where it goes? prefix: a worker has its beginning; least-queued: the one with "
            "least to do; other reasons are second choices.",
            Look("cps"),
            Query(rate("v4serve_placements_total", by="reason"), "{{reason}}"),
            stacked=True,
        ),
        lines(
            "Hottest worker's share",
            "Is load spread, or does prefix affinity pile it on one worker? The share of placed tokens of the worker "
            "that gets most, beside a fair share.",
            Look("percentunit", high=1),
            Query(f"max by (role) ({placed}) / (sum by (role) ({placed}) > 0)", "hottest {{role}}"),
            Query(f"1 / (sum by (role) ({routable}) > 0)", "fair {{role}}"),
        ),
        lines(
            "Tokens placed, by worker",
            "Which worker gets how much?",
            Look("suffix: tok/s"),
            Query(placed, "{{role}} {{worker}}"),
        ),
        lines(
            "First token: estimated and real",
            "Does the router know how long a request will take? Placement is only as good as this estimate.",
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
            "What does placing by load cost in cache? Prompt tokens that another prefill worker had and the chosen "
            "one had not, as a share of all.",
            Look("percentunit"),
            Query(f"{rate('v4serve_prefix_elsewhere_tokens_total')} / ({asked} > 0)", "had elsewhere"),
        ),
    )


def _prefixes() -> Row:
    slots = f"sum by (pod) ({select('v4serve_block_slots')})"
    admitted, hit = rate(_PREFIX), 'result="hit"'
    return row(
        "What is hit, and why is the rest lost?",
        stat(
            "Hit ratio",
            "What share of prompt tokens is in the cache of the worker that computes them?",
            Look("percentunit", high=1, base="orange", steps=((0.2, "green"),), empty="no prompts"),
            Query(f"{rate(_PREFIX, hit)} / ({admitted} > 0)", "hit"),
            width=4,
            height=8,
        ),
        lines(
            "Prompt tokens: hit and lost",
            "Why are prompt tokens computed? never seen: no worker computed this beginning here; evicted: it was here "
            "and had to make room; no checkpoint: blocks are here, but no state to go on from; replayed: blocks are "
            "here, the last tokens were computed again for their state. The five add up to all prompt tokens.",
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
            "How much of each worker's cache holds prefixes that nobody uses now? No share left means that the next "
            "prompt evicts what is in use soon.",
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
        "What do routers see of workers?",
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
            "Does a pool shrink? Heard: there is a connection. Used: requests are placed there.",
            Look("short"),
            Query(f"sum by (role) (max by (role, worker) ({select('v4serve_worker_up')}))", "{{role}} heard"),
            Query(f"sum by (role) ({seen})", "{{role}} used"),
        ),
        lines(
            "Retries by reason",
            "Why are legs placed again?",
            Look("cps"),
            Query(rate("v4serve_retries_total", by="role, reason"), "{{role}}: {{reason}}"),
            stacked=True,
        ),
        lines(
            "Probes",
            "How long does a probe's one token take through prefill, transfer and decode?",
            Look("s"),
            *quantiles("v4serve_probe_seconds"),
            width=12,
        ),
        lines(
            "Probes that failed",
            "Does a worker connect but not compute?",
            Look("cps"),
            Query(rate("v4serve_probe_failures_total", by="role"), "{{role}}"),
            width=12,
        ),
    )
