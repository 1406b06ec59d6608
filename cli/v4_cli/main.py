"""The `v4serve` command: collects the sub-commands, one per module, and turns errors into exit codes.

A sub-command imports its implementation only when it runs, so `plan` and `router` work without torch, and `--help` is
fast.
"""

import logging
import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from v4_cli.demo import demo
from v4_cli.errors import OK, USAGE, exit_code
from v4_cli.fetch import fetch
from v4_cli.generate import generate
from v4_cli.load import load
from v4_cli.local import local
from v4_cli.operate import operator
from v4_cli.plan import plan
from v4_cli.router import router
from v4_cli.top import top
from v4_cli.workers import decode, prefill
from v4_core.errors import V4Error
from v4_core.logs import writes_json

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Serve DeepSeek V4 from separate prefill and decode workers behind one OpenAI-compatible address.",
    epilog="Exit codes: 0 success or stopped by a signal, 1 failure, 2 wrong flag, setting or model.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"v4serve {version('v4serve')}")
        raise typer.Exit


@app.callback()
def _root(
    show: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """The flags that belong to no sub-command."""


app.command()(local)
app.command()(demo)
app.command()(generate)
app.command()(plan)
app.command()(fetch)
app.command()(router)
app.command("prefill")(prefill)
app.command("decode")(decode)
app.command()(operator)
app.command()(top)
app.command()(load)


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit code. Prints an error that the user can act on as one line on stderr."""
    try:
        code = app(args=list(arguments) or ["--help"], standalone_mode=False, prog_name="v4serve")
    except typer.TyperException as error:
        print(f"error: {error.format_message()}", file=sys.stderr)
        return USAGE
    except V4Error as error:
        if writes_json():
            logging.getLogger("v4serve").error("%s", error)
        else:
            print(f"error: {error}", file=sys.stderr)
        return exit_code(error)
    return code if isinstance(code, int) else OK


def main() -> None:
    """Runs the command with the process's arguments, and exits."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
