"""Prefill and decode workers, and the transfer between them."""

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
        "Each stage of a request inside the workers, and the transfer of its cache between them.",
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
            "How many prompt tokens are still to be computed, and are they spread evenly?",
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
            "How long does prefill take from admission to the first token?",
            Look("s"),
            *quantiles("v4serve_prompt_prefill_seconds", here),
        ),
        lines(
            "Duration of a prefill step",
            "How long does one step take? Running streams in a mixed step wait this long for their next token.",
            Look("s"),
            *quantiles("v4serve_engine_step_seconds", here),
        ),
        heatmap(
            "Tokens of a prefill step",
            "Are steps full? Many small steps mean that chunks are cut short, or that there is little work.",
            "none",
            rate("v4serve_engine_step_tokens_bucket", here, "le"),
            width=12,
        ),
        lines(
            "Cache slots of prefill",
            "What occupies the cache? used: sequences and leases; cached: prefixes that can be evicted; checkpoint: "
            "states to continue from.",
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
            "Are leases released? A lease occupies memory on the prefill worker until a decode worker has pulled its "
            "cache; a number that only grows indicates a leak.",
            Look("short"),
            Query(f"sum by (pod) ({select('v4serve_leases_held', holder)})", "{{pod}}"),
        ),
        lines(
            "Ends of leases",
            "How do leases end? released: the decode worker has the cache; expired: no decode worker pulled the cache "
            "in time; unneeded: the first token was also the last; dropped: the request was abandoned.",
            Look("cps", colors={"released": "green", "unneeded": "blue", "dropped": "yellow", "expired": "red"}),
            Query(rate("v4serve_leases_total", by="end"), "{{end}}"),
            stacked=True,
        ),
        lines(
            "How long leases are held",
            "How long does a lease occupy memory on the prefill worker after its prompt is computed?",
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
            "Is the network the limit? While moving: bytes per second of a transfer, without the time that it waits "
            "for prefill. Busiest worker: its send plus receive rate, pauses included.",
            Look("Bps", low=None, colors={"link": "red"}, log=True),
            Query(achieved(), "while moving"),
            Query(busiest_link(), "busiest worker"),
            Query(f"vector({LINK})", "link"),
        ),
        lines(
            "Received, by worker",
            "How much does each worker receive over each transport?",
            Look("Bps"),
            Query(rate("v4serve_transfer_bytes_total", receiver, "pod, transport"), "{{pod}} {{transport}}"),
        ),
        lines(
            "Moved and saved",
            "How much is not transferred? Saved: blocks that the decode worker already had.",
            Look("Bps", colors={"saved": "green", "moved": "blue"}),
            Query(rate("v4serve_transfer_bytes_total"), "moved"),
            Query(rate("v4serve_transfer_saved_bytes_total"), "saved"),
            stacked=True,
        ),
        lines(
            "Transfers by result",
            "Do transfers succeed? refused: no room on the decode worker; failed: the connection broke or a check "
            "failed.",
            Look("cps", colors=good),
            Query(rate("v4serve_transfers_total", by="result"), "{{result}}"),
            stacked=True,
            width=6,
        ),
        lines(
            "Duration",
            "How long does a transfer move data, without the time in which prefill had nothing to send?",
            Look("s"),
            *quantiles("v4serve_transfer_seconds"),
            width=6,
        ),
        lines(
            "Waiting for prefill",
            "How long do transfers pause because the prompt is still being computed? This time overlaps with prefill.",
            Look("s"),
            *quantiles("v4serve_transfer_wait_seconds"),
            width=6,
        ),
        lines(
            "In flight",
            "How many transfers are in progress to each worker?",
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
            "How many tokens are sampled per second?",
            Look("suffix: tok/s"),
            Query(rate("v4serve_decode_tokens_total", here, "pod"), "{{pod}}"),
        ),
        lines(
            "Decode workers in steps",
            "Is compute the limit? At 100 %, each additional stream slows down all streams.",
            _SHARE,
            Query(busy(here, "pod"), "{{pod}}"),
        ),
        lines(
            "Sequences by state",
            "What state are sequences in? arriving: the cache is being transferred; waiting: preempted for lack of "
            "memory, or not admitted yet.",
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
            "How many tokens does a step sample? Larger batches make better use of each read of the weights.",
            Look("suffix: tok"),
            *quantiles("v4serve_engine_step_tokens", f'{here}, kind="decode"'),
        ),
        lines(
            "Preemptions",
            "Are running streams preempted for lack of memory? Frequent preemptions mean too many sequences for the "
            "memory.",
            Look("cps"),
            Query(rate("v4serve_preemptions_total", here, "pod"), "{{pod}}"),
        ),
        lines(
            "Cache slots of decode",
            "What occupies the cache?",
            _SLOTS,
            Query(f"sum by (state) ({select('v4serve_block_slots', here)})", "{{state}}"),
            stacked=True,
            width=12,
        ),
        lines(
            "Live tails in use",
            "How many more sequences fit? At 100 %, new sequences are refused until one ends.",
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
            "What state does each worker report?",
            Look("none", names=_STATES),
            number,
            {"role": "Role", "pod": "Pod", "revision": "Revision"},
            "State",
        ),
        lines(
            "CPU",
            "How much CPU does each worker use? In cores.",
            Look("suffix: cores"),
            Query(rate("process_cpu_seconds_total", 'role=~"prefill|decode"', "pod"), "{{pod}}"),
        ),
        lines(
            "Memory",
            "Does the memory of a worker grow?",
            Look("bytes"),
            Query(f"sum by (pod) ({select('process_resident_memory_bytes', _WORKERS)})", "{{pod}}"),
        ),
    )


_WORKERS = 'role=~"prefill|decode"'


def _in(state: str) -> str:
    return f'state="{state}"'
