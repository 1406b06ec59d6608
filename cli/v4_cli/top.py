"""`v4serve top`: a live view of one router and its workers in a terminal, until q or Ctrl-C.

Fetches /facts every second, as the router's page does; top_view.py draws it. Uses urllib, because httpx is not in the
router's image, in which this command runs too.
"""

import http.client
import json
import os
import select
import sys
import termios
import time
import tty
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Annotated
from urllib.parse import urlsplit

import typer
from rich.console import Console
from rich.live import Live

from v4_cli.errors import Unreachable
from v4_cli.program_name import program_name
from v4_cli.top_view import frame
from v4_core.errors import ConfigError
from v4_router.facts import Facts, from_json

URL = "http://127.0.0.1:8000"
_EVERY_SECONDS = 1.0
_TIMEOUT_SECONDS = 5.0

# As in v4serve's other clients, the environment's proxy is not used: it is not meant for a forwarded port.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def top(
    url: Annotated[
        str, typer.Argument(help="URL of a router's monitoring port, or of its API port if it has no API keys.")
    ] = URL,
    *,
    once: Annotated[bool, typer.Option("--once", help="Observe for 1 s, print one frame, and exit.")] = False,
) -> None:
    """Watch one router and its workers: occupancy, rates, latencies, prefix hits, transfers.

    Rates and latencies are those of this router; loads are those of all workers it knows. q or Ctrl-C ends it.

    On Kubernetes: kubectl port-forward deploy/NAME-router 9100, then v4serve top http://127.0.0.1:9100
    """
    url = base(url)
    console = Console()
    first = fetch_facts(url)
    if once:
        time.sleep(_EVERY_SECONDS)
        console.print(frame(url, fetch_facts(url), console.width))
        return
    if not console.is_terminal:
        raise ConfigError("top needs a terminal: use --once to print one frame")
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live, keys() as pressed:
        watch(url, first, live, pressed)


def watch(url: str, known: Facts, live: Live, pressed: Callable[[float], str]) -> None:
    """Draws every second until q is pressed; keeps the last facts, and retries, while the router does not answer.

    `pressed` waits that many seconds for a key, and returns it or "".
    """
    stale, answered = "", _clock()
    while True:
        size = live.console.size
        live.update(frame(url, known, size.width, size.height, stale), refresh=True)
        try:
            if pressed(_EVERY_SECONDS) in ("q", "Q"):
                return
            known = fetch_facts(url)
            stale, answered = "", _clock()
        except Unreachable as error:
            stale = f"no answer since {answered}: {error.reason}"


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def fetch_facts(url: str) -> Facts:
    """Returns a router's facts. Raises Unreachable."""
    try:
        with _opener.open(f"{url}/facts", timeout=_TIMEOUT_SECONDS) as answer:
            return from_json(json.load(answer))
    except urllib.error.HTTPError as error:
        error.close()
        hint = _other_port() if error.code == 401 else _other_version()
        raise Unreachable(url, f"it answers {error.code} to /facts", hint) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(url, _reason(error), _start()) from None
    except (ValueError, KeyError, TypeError):
        raise Unreachable(url, "the answer is not that of a router of this version", _other_version()) from None


def _start() -> str:
    return f"start a router with `make serve`, or on Kubernetes run {_port_forward()}"


def _other_port() -> str:
    return f"it demands an API key: give the URL of its monitoring port; on Kubernetes run {_port_forward()}"


def _other_version() -> str:
    return f"give the API or monitoring port of a router of this version; on Kubernetes run {_port_forward()}"


def _port_forward() -> str:
    return f"kubectl port-forward deploy/NAME-router 9100, then {program_name()} top http://127.0.0.1:9100"


def _reason(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def base(given: str) -> str:
    """Returns the base URL of a router, given as a user writes it: the scheme may be missing, and /v1 may follow.

    Raises ConfigError if it is not a URL of a router.
    """
    url = given.strip() if "://" in given else f"http://{given.strip()}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not (parts.query or parts.fragment or " " in url)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{given!r} is not the URL of a router: give one such as {URL}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """Turns off the terminal's echo, and yields a function that waits some seconds for a key; "" if none is pressed."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield lambda seconds: os.read(terminal, 1).decode("ascii", "replace") if _readable(terminal, seconds) else ""
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _readable(terminal: int, seconds: float) -> bool:
    return bool(select.select([terminal], [], [], seconds)[0])


def _no_key(seconds: float) -> str:
    time.sleep(seconds)
    return ""
