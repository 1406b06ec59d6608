"""PromQL expressions that several panels share. Uses the labels that scraping sets."""

from charts.dashboards.grafana import found
from charts.dashboards.panels import Json, Query

SCOPE = 'namespace=~"$namespace", deployment=~"$deployment"'
CHOSEN = f'{SCOPE}, pod=~"$pod"'
_WINDOW = "[$__rate_interval]"
PERCENTILES = (50, 90, 99)


def select(name: str, matchers: str = "") -> str:
    """The series of a metric that the dashboard's variables select."""
    return f"{name}{{{CHOSEN}{', ' if matchers else ''}{matchers}}}"


def rate(name: str, matchers: str = "", by: str = "") -> str:
    """A counter's increase per second, summed in total or by the labels `by`."""
    return f"sum{_by(by)} (rate({select(name, matchers)}{_WINDOW}))"


def mean(name: str, matchers: str = "", by: str = "") -> str:
    """A histogram's mean observation."""
    return f"{rate(f'{name}_sum', matchers, by)} / ({rate(f'{name}_count', matchers, by)} > 0)"


def quantile(percent: int, name: str, matchers: str = "") -> str:
    """A percentile of a histogram's observations."""
    return f"histogram_quantile({percent / 100:g}, {rate(f'{name}_bucket', matchers, 'le')})"


def quantiles(name: str, matchers: str = "", legend: str = "") -> tuple[Query, ...]:
    """p50, p90 and p99 of a histogram."""
    return tuple(Query(quantile(p, name, matchers), f"{legend} p{p}".strip()) for p in PERCENTILES)


def busy(role: str = "", by: str = "role") -> str:
    """Share of time that workers spend in steps: step seconds per second of each pod, or their mean by role."""
    steps = rate("v4serve_engine_step_seconds_sum", role, "role, pod")
    return steps if by == "pod" else f"avg by (role) ({steps})"


def tails(matchers: str = "", by: str = "role") -> str:
    """Share of live tails in use."""
    name = "v4serve_live_tails"
    used = select(name, f'{matchers}{", " if matchers else ""}state="used"')
    return f"sum{_by(by)} ({used}) / sum{_by(by)} ({select(name, matchers)})"


def achieved() -> str:
    """Bytes per second of a transfer while data moves."""
    return f"{rate('v4serve_transfer_bytes_total')} / ({rate('v4serve_transfer_seconds_sum')} > 0)"


def busiest_link() -> str:
    """Bytes per second that the busiest pod sends and receives together."""
    sent, received = rate("v4serve_leased_bytes_sent_total", by="pod"), rate("v4serve_transfer_bytes_total", by="pod")
    return f"max({sent} + {received})"


LINK = "$link * 1e9 / 8"  # bytes per second


def variables(series: str = "v4serve_process_info") -> tuple[Json, Json, Json]:
    """Variables for namespace, deployment and pod of the processes that belong to a deployment."""
    namespace = 'namespace=~"$namespace"'
    deployment = f'{namespace}, deployment=~"$deployment"'
    return (
        found("namespace", "Namespace", f'{series}{{deployment!=""}}', "namespace"),
        found("deployment", "Deployment", f'{series}{{{namespace}, deployment!=""}}', "deployment", ".+"),
        found("pod", "Pod", f"{series}{{{deployment}}}", "pod"),
    )


def _by(labels: str) -> str:
    return f" by ({labels})" if labels else ""
