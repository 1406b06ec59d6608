"""`v4serve top`: what one router and its workers do, in a terminal, until q or Ctrl-C.

Asks /facts, as the router's own page does. How it looks is top_view.py's matter.
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

from v4_cli.called import v4serve
from v4_cli.errors import Unreachable
from v4_cli.top_view import frame
from v4_core.errors import ConfigError
from v4_router.facts import Facts, from_json

URL = "http://127.0.0.1:8000"
_EVERY_SECONDS = 1.0
_PATIENCE_SECONDS = 5.0

# As v4serve's other clients: what environment variables name as a proxy is not meant for a forwarded port.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def top(
    url: Annotated[str, typer.Argument(help="Of a router: its API port without keys, or its monitoring port.")] = URL,
    *,
    once: Annotated[bool, typer.Option("--once", help="Look for 1 s, print one frame, and end.")] = False,
) -> None:
    """Watch one router and its workers: occupancy, rates, latencies, prefix hits, transfers.

    Rates and latencies are of this one router, the rest is of all workers that it knows. q or Ctrl-C ends it.

    On Kubernetes: kubectl port-forward deploy/NAME-router 9100, then v4serve top http://127.0.0.1:9100
    """
    url = base(url)
    console = Console()
    first = look(url)
    if once:
        time.sleep(_EVERY_SECONDS)
        console.print(frame(url, look(url), console.width))
        return
    if not console.is_terminal:
        raise ConfigError("top needs a terminal: use --once to print one frame")
    with suppress(KeyboardInterrupt), Live(console=console, screen=True, auto_refresh=False) as live, keys() as pressed:
        watch(url, first, live, pressed)


def watch(url: str, known: Facts, live: Live, pressed: Callable[[float], str]) -> None:
    """Draw until q is pressed; `pressed` waits so many seconds for a key. A router that is silent is asked again."""
    silent, heard = "", _clock()
    while True:
        size = live.console.size
        live.update(frame(url, known, size.width, size.height, silent), refresh=True)
        try:
            if pressed(_EVERY_SECONDS) in ("q", "Q"):
                return
            known = look(url)
            silent, heard = "", _clock()
        except Unreachable as error:
            silent = f"no answer since {heard}: {error.reason}"


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def look(url: str) -> Facts:
    """Ask a router. Raises Unreachable."""
    try:
        with _opener.open(f"{url}/facts", timeout=_PATIENCE_SECONDS) as answer:
            return from_json(json.load(answer))
    except urllib.error.HTTPError as error:
        error.close()
        hint = _other_port() if error.code == 401 else _other_version()
        raise Unreachable(url, f"it answers {error.code} to /facts", hint) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unreachable(url, _why(error), _start()) from None
    except (ValueError, KeyError, TypeError):
        raise Unreachable(url, "what answers is no router, or one of another version", _other_version()) from None


def _start() -> str:
    return f"start one with `make serve`; to reach one on Kubernetes: {_forwarded()}"


def _other_port() -> str:
    return (
        "an API port that demands keys shows nothing here: ask the router's monitoring port; on Kubernetes: "
        f"{_forwarded()}"
    )


def _other_version() -> str:
    return f"give the API or monitoring port of a router of this version; on Kubernetes: {_forwarded()}"


def _forwarded() -> str:
    return f"kubectl port-forward deploy/NAME-router 9100, then {v4serve()} top http://127.0.0.1:9100"


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    return getattr(reason, "strerror", None) or str(reason) or type(reason).__name__


def base(given: str) -> str:
    """The address of a router as its clients need it, from what a user gave: http where no scheme is named, as curl
    takes it, and without the /v1 that clients of its API end with. Raises ConfigError on what is no such address."""
    url = given.strip() if "://" in given else f"http://{given.strip()}"
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        usable = usable and not (parts.query or parts.fragment or " " in url)
    except ValueError:
        usable = False
    if not usable:
        raise ConfigError(f"{given!r} is no address of a router: give one such as {URL}")
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


@contextmanager
def keys() -> Iterator[Callable[[float], str]]:
    """A function that waits so many seconds for a key and returns it, or "" if none came; no echo meanwhile."""
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
