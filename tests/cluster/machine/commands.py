"""Runs a command to its end."""

import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster.machine.errors import CommandFailed


def run(
    command: Sequence[str | Path],
    *,
    text: str | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
) -> str:
    """Standard output of `command`, which gets `text` as standard input; raises CommandFailed when `check`."""
    words = [str(word) for word in command]
    done = subprocess.run(words, input=text or "", cwd=cwd, env=env, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise CommandFailed(words, done.returncode, done.stdout + done.stderr)
    return done.stdout


def follow(
    command: Sequence[str | Path], each: Callable[[str], None], *, cwd: Path | None = None, env: Mapping[str, str]
) -> None:
    """Run `command` and give each line that it writes to `each` at once. Raises CommandFailed."""
    words = [str(word) for word in command]
    lines: list[str] = []
    with subprocess.Popen(
        words, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            assert process.stdout
            for line in process.stdout:
                lines.append(line)
                each(line.rstrip("\n"))
        except BaseException:
            process.kill()
            raise
    if process.returncode:
        raise CommandFailed(words, process.returncode, "".join(lines))
