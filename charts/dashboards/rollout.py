"""Operator and rollout: conditions and revisions of deployments, and the operator's own work."""

from charts.dashboards.grafana import Row, dashboard, found, row
from charts.dashboards.panels import Json, Look, Query, heatmap, lines, stat, table
from charts.dashboards.promql import SCOPE, select, variables

NAME = "v4serve-operator"
_WINDOW = "[$__rate_interval]"
_OPERATOR = 'pod=~"$operator"'
_IS_OPERATOR = f" and on (namespace, pod) v4serve_operator_leader{{{_OPERATOR}}}"


def make() -> Json:
    """The dashboard."""
    return dashboard(
        NAME,
        "v4serve / Operator and rollout",
        "Desired and actual state of V4Deployments, running revisions, and the operator's work.",
        [*variables(), found("operator", "Operator", "v4serve_operator_leader", "pod")],
        [_deployments(), _rollout(), _operator()],
    )


def _holding(kind: str) -> str:
    holds = f'v4serve_deployment_condition{{{SCOPE}, type="{kind}", status="True"}}'
    return f"count(max by (namespace, deployment) ({holds}) == 1) or vector(0)"


def _deployments() -> Row:
    every = f"max by (namespace, deployment, type, status, reason) (v4serve_deployment_condition{{{SCOPE}}}) == 1"
    known = f'max by (namespace, deployment) (v4serve_deployment_condition{{{SCOPE}, type="Ready"}})'
    return row(
        "Do deployments serve?",
        stat(
            "Deployments",
            "How many V4Deployments does the operator manage?",
            Look("none"),
            Query(f"count({known} == 1)", "known"),
            height=8,
        ),
        stat(
            "Not Ready",
            "For how many V4Deployments does the desired revision not serve?",
            Look("none", steps=((1, "red"),)),
            Query(f"count({known} == 1) - ({_holding('Ready')})", "not ready"),
            height=8,
        ),
        stat(
            "Progressing",
            "For how many V4Deployments is a change being rolled out?",
            Look("none", steps=((1, "blue"),)),
            Query(_holding("Progressing"), "progressing"),
            height=8,
        ),
        stat(
            "Degraded",
            "How many V4Deployments need someone to act?",
            Look("none", steps=((1, "red"),)),
            Query(_holding("Degraded"), "degraded"),
            height=8,
        ),
        table(
            "Conditions",
            "What are the conditions of the V4Deployments, and their reasons?",
            Look("none"),
            every,
            {
                "namespace": "Namespace",
                "deployment": "Deployment",
                "type": "Condition",
                "status": "Status",
                "reason": "Reason",
            },
            "",
            width=12,
        ),
    )


def _rollout() -> Row:
    ready = f"{select('v4serve_worker_state', _READY)} == 1"
    workers = f"max by (role, state, namespace, deployment) (v4serve_deployment_workers{{{SCOPE}}})"
    return row(
        "How far has a rollout progressed?",
        lines(
            "Workers wanted, ready and of the wanted revision",
            "Does a pool have the desired number of workers? The three lines of a role meet after a rollout.",
            Look("short"),
            Query(f"sum by (role, state) ({workers})", "{{role}} {{state}}"),
        ),
        lines(
            "Ready workers by revision",
            "Do several revisions run at the same time? Caches are transferred only between workers of the same "
            "revision, so each revision needs both roles.",
            Look("short"),
            Query(f"count by (role, revision) ({ready})", "{{role}} {{revision}}"),
            stacked=True,
        ),
        lines(
            "Revisions of a deployment",
            "Is a new revision being rolled out? 1 = no; 2 for a long time means that the rollout is stuck.",
            Look("short", steps=((2, "orange"),)),
            Query(
                f"max by (namespace, deployment) (v4serve_deployment_revisions{{{SCOPE}}})",
                "{{namespace}}/{{deployment}}",
            ),
        ),
        lines(
            "Workers by state",
            "Do new workers start, and old ones terminate?",
            Look("short", colors={"loading": "yellow", "ready": "green", "draining": "orange", "failed": "red"}),
            Query(f"sum by (state) ({select('v4serve_worker_state')})", "{{state}}"),
            stacked=True,
        ),
        lines(
            "Processes by version",
            "Which versions of v4serve run at the same time?",
            Look("short"),
            Query(f"count by (role, version) ({select('v4serve_process_info')})", "{{role}} {{version}}"),
            stacked=True,
        ),
        lines(
            "Time to Ready",
            "How long does a change take until the desired revision serves?",
            Look("s"),
            *_quantiles("v4serve_operator_time_to_ready_seconds", "1h"),
        ),
    )


_READY = 'state="ready"'


def _operator() -> Row:
    return row(
        "Does the operator keep up?",
        lines(
            "Reconciles by result",
            "How often are V4Deployments reconciled, and with which result?",
            Look("cps"),
            Query(_rate("v4serve_operator_reconciles_total", "result"), "{{result}}"),
            stacked=True,
        ),
        lines(
            "Duration of a reconcile",
            "Are reconciles slow?",
            Look("s"),
            *_quantiles("v4serve_operator_reconcile_seconds", "$__rate_interval"),
        ),
        heatmap(
            "Reconciles by duration",
            "Do durations fall into two groups, reconciles with and without writes?",
            "s",
            _rate("v4serve_operator_reconcile_seconds_bucket", "le"),
        ),
        lines(
            "Errors",
            "Which errors does the operator meet?",
            Look("cps"),
            Query(_rate("v4serve_operator_errors_total", "kind"), "{{kind}}"),
            stacked=True,
        ),
        lines(
            "Queue",
            "Do V4Deployments wait to be reconciled?",
            Look("short"),
            Query(f"sum by (pod) (v4serve_operator_queue_length{{{_OPERATOR}}})", "{{pod}}"),
        ),
        lines(
            "Writes to the API server",
            "Which objects does the operator write? Without changes, nearly all writes renew the Lease.",
            Look("cps"),
            Query(_rate("v4serve_operator_api_writes_total", "verb, kind"), "{{verb}} {{kind}}"),
            stacked=True,
        ),
        lines(
            "Watches that broke off",
            "Is the connection to the API server stable?",
            Look("cps"),
            Query(_rate("v4serve_operator_watch_restarts_total", "kind"), "{{kind}}"),
            width=6,
        ),
        lines(
            "Leader",
            "Which replica is the leader? The sum is 1, except briefly during a change of leader.",
            Look("short"),
            Query(f"sum by (pod) (v4serve_operator_leader{{{_OPERATOR}}})", "{{pod}}"),
            stacked=True,
            width=6,
        ),
        lines(
            "CPU of the operator",
            "Is the operator short of CPU? In cores.",
            Look("suffix: cores"),
            Query(f"sum by (pod) (rate({_process('process_cpu_seconds_total')}{_WINDOW}){_IS_OPERATOR})", "{{pod}}"),
            width=6,
        ),
        lines(
            "Memory of the operator",
            "Does the memory of the operator grow?",
            Look("bytes"),
            Query(f"sum by (pod) ({_process('process_resident_memory_bytes')}{_IS_OPERATOR})", "{{pod}}"),
            width=6,
        ),
    )


def _process(name: str) -> str:
    return f"{name}{{{_OPERATOR}}}"


def _rate(name: str, by: str) -> str:
    return f"sum by ({by}) (rate({name}{{{_OPERATOR}}}{_WINDOW}))"


def _quantiles(name: str, window: str) -> tuple[Query, ...]:
    rates = f"sum by (le) (rate({name}_bucket{{{_OPERATOR}}}[{window}]))"
    return tuple(Query(f"histogram_quantile({p / 100:g}, {rates})", f"p{p}") for p in (50, 90, 99))
