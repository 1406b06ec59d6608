"""What happens inside prefill and decode workers, and between them."""

from charts.dashboards.grafana import Row, dashboard, row, typed
from charts.dashboards.panels import Json, Look, Query, heatmap, lines, table
from charts.dashboards.promql import (
    LINK,
    achieved,
    busiest_link,
    busy,
    quantiles,
    rate,
    select,
    tails,
    variables,
)

NAME = "v4serve-workers"
_SHARE = Look("percentunit", high=1)
_SLOTS = Look("short", colors={"free": "green", "cached": "blue", "used": "orange", "checkpoint": "purple"})
_STATES = {1: ("loading", "yellow"), 2: ("ready", "green"), 3: ("draining", "orange"), 4: ("failed", "red")}


def make() -> Json:
    """The dashboard."""
    return dashboard(
        NAME,
        "v4serve / Prefill, transfer and decode",
        "Each stage of a request inside the workers, and the way of the cache between them.",
        [*variables(), typed("link", "Link (Gbit/s)", "25")],
        [_prefill(), _leases(), _transfer(), _decode(), _state()],
    )


def _prefill() -> Row:
    here = 'role="prefill"'
    return row(
        "Prefill",
        lines(
            "Prompt tokens computed",
            "How fast are prompts computed?",
            Look("suffix: tok/s"),
            Query(rate("v4serve_prefill_tokens_total", here, "pod"), "{{pod}}"),
        ),
        lines(
            "Prefill workers in steps",
            "Is compute the limit? At 100 % a worker computes without a pause, and prompts wait.",
            _SHARE,
            Query(busy(here, "pod"), "{{pod}}"),
        ),
        lines(
            "Prompt tokens waiting",
            "How much is there still to compute, and is it spread?",
            Look("suffix: tok"),
            Query(f"sum by (pod) ({select('v4serve_queued_tokens', here)})", "{{pod}}"),
        ),
        lines(
            "Time in the queue",
            "How long do prompts wait until they are admitted?",
            Look("s"),
            *quantiles("v4serve_prompt_queue_seconds", here),
        ),
        lines(
            "Time in prefill",
            "How long from admission to the first token?",
            Look("s"),
            *quantiles("v4serve_prompt_prefill_seconds", here),
        ),
        lines(
            "Duration of a prefill step",
            "How long is one step? A running stream of a mixed step waits as long.",
            Look("s"),
            *quantiles("v4serve_engine_step_seconds", here),
        ),
        heatmap(
            "Tokens of a prefill step",
            "Are steps full? Many small ones mean that chunks are cut short, or that there is little to do.",
            "none",
            rate("v4serve_engine_step_tokens_bucket", here, "le"),
            width=12,
        ),
        lines(
            "Cache slots of prefill",
            "What fills the memory? used: sequences and leases; cached: prefixes that can be evicted; checkpoint: "
            "states to go on from.",
            _SLOTS,
            Query(f"sum by (state) ({select('v4serve_block_slots', here)})", "{{state}}"),
            stacked=True,
            width=12,
        ),
    )


def _leases() -> Row:
    holder = 'role="prefill"'
    return row(
        "Leases: finished prompts that wait for a decode worker",
        lines(
            "Leases held",
            "Do caches come back? A lease holds memory of prefill until decode has pulled it; a number that only "
            "grows is a leak.",
            Look("short"),
            Query(f"sum by (pod) ({select('v4serve_leases_held', holder)})", "{{pod}}"),
        ),
        lines(
            "Ends of leases",
            "How do they end? released: decode has the cache; expired: nobody came in time; unneeded: the first "
            "token was the last; dropped: the request was given up.",
            Look("cps", colors={"released": "green", "unneeded": "blue", "dropped": "yellow", "expired": "red"}),
            Query(rate("v4serve_leases_total", by="end"), "{{end}}"),
            stacked=True,
        ),
        lines(
            "How long leases are held",
            "How long is memory of prefill held after its work is done?",
            Look("s"),
            *quantiles("v4serve_lease_seconds"),
        ),
    )


def _transfer() -> Row:
    receiver = 'role="decode"'
    good = {"adopted": "green", "cancelled": "text", "refused": "yellow", "failed": "red"}
    return row(
        "Transfer",
        lines(
            "Rate against the link",
            "Is the network the limit? While moving: bytes per second of a transfer, without its waiting for prefill. "
            "Busiest worker: what it sends or receives, pauses included.",
            Look("Bps", low=None, colors={"link": "red"}, log=True),
            Query(achieved(), "while moving"),
            Query(busiest_link(), "busiest worker"),
            Query(f"vector({LINK})", "link"),
        ),
        lines(
            "Received, by worker",
            "Who receives how much, by which transport?",
            Look("Bps"),
            Query(rate("v4serve_transfer_bytes_total", receiver, "pod, transport"), "{{pod}} {{transport}}"),
        ),
        lines(
            "Moved and saved",
            "How much need not travel? Saved are blocks that the decode worker had already.",
            Look("Bps", colors={"saved": "green", "moved": "blue"}),
            Query(rate("v4serve_transfer_bytes_total"), "moved"),
            Query(rate("v4serve_transfer_saved_bytes_total"), "saved"),
            stacked=True,
        ),
        lines(
            "Transfers by result",
            "Do caches arrive? refused: no room on the decode worker; failed: the connection broke or a check did not "
            "hold.",
            Look("cps", colors=good),
            Query(rate("v4serve_transfers_total", by="result"), "{{result}}"),
            stacked=True,
            width=6,
        ),
        lines(
            "Duration",
            "How long does a transfer move, without the time in which prefill had nothing to send?",
            Look("s"),
            *quantiles("v4serve_transfer_seconds"),
            width=6,
        ),
        lines(
            "Waiting for prefill",
            "How long do transfers stand still because prefill still computes? That part overlaps with work.",
            Look("s"),
            *quantiles("v4serve_transfer_wait_seconds"),
            width=6,
        ),
        lines(
            "In flight",
            "How many caches are on their way, to whom?",
            Look("short"),
            Query(f"sum by (pod) ({select('v4serve_transfers_in_flight', receiver)})", "{{pod}}"),
            width=6,
        ),
    )


def _decode() -> Row:
    here = 'role="decode"'
    return row(
        "Decode",
        lines(
            "Tokens drawn",
            "How fast are answers written?",
            Look("suffix: tok/s"),
            Query(rate("v4serve_decode_tokens_total", here, "pod"), "{{pod}}"),
        ),
        lines(
            "Decode workers in steps",
            "Is compute the limit? At 100 % every further stream makes all streams slower.",
            _SHARE,
            Query(busy(here, "pod"), "{{pod}}"),
        ),
        lines(
            "Sequences by state",
            "What do sequences do? arriving: the cache is on its way; waiting: put back for want of memory, or not "
            "admitted yet.",
            Look("short", colors={"running": "green", "arriving": "blue", "waiting": "orange", "parked": "purple"}),
            Query(f"sum by (state) ({select('v4serve_sequences', here)})", "{{state}}"),
            stacked=True,
        ),
        lines(
            "Duration of a decode step",
            "How long does a running stream wait for its next token?",
            Look("s"),
            *quantiles("v4serve_engine_step_seconds", here),
        ),
        lines(
            "Batch size",
            "How many tokens does a step draw? The larger, the better weights are used.",
            Look("suffix: tok"),
            *quantiles("v4serve_engine_step_tokens", f'{here}, kind="decode"'),
        ),
        lines(
            "Preemptions",
            "Are running streams put back for want of memory? More than now and then means too many sequences for the "
            "memory.",
            Look("cps"),
            Query(rate("v4serve_preemptions_total", here, "pod"), "{{pod}}"),
        ),
        lines(
            "Cache slots of decode",
            "What fills the memory?",
            _SLOTS,
            Query(f"sum by (state) ({select('v4serve_block_slots', here)})", "{{state}}"),
            stacked=True,
            width=12,
        ),
        lines(
            "Live tails in use",
            "How many more sequences fit? At 100 % new ones are refused until one ends.",
            Look("percentunit", high=1, steps=((0.9, "red"),)),
            Query(tails(here, "pod"), "{{pod}}"),
            width=12,
        ),
    )


def _state() -> Row:
    number = " or ".join(
        f"(max by (pod, role, revision) ({select('v4serve_worker_state', _in(text))}) == 1) * {value}"
        for value, (text, _) in _STATES.items()
    )
    return row(
        "Workers",
        table(
            "State",
            "What does each worker say of itself?",
            Look("none", names=_STATES),
            number,
            {"role": "Role", "pod": "Pod", "revision": "Revision"},
            "State",
        ),
        lines(
            "CPU",
            "Which worker uses how much? In cores.",
            Look("suffix: cores"),
            Query(rate("process_cpu_seconds_total", 'role=~"prefill|decode"', "pod"), "{{pod}}"),
        ),
        lines(
            "Memory",
            "Does a worker grow?",
            Look("bytes"),
            Query(f"sum by (pod) ({select('process_resident_memory_bytes', _WORKERS)})", "{{pod}}"),
        ),
    )


_WORKERS = 'role=~"prefill|decode"'


def _in(state: str) -> str:
    return f'state="{state}"'
