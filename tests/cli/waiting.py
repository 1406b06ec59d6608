"""Polls with a deadline for conditions of other processes."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - other processes set no event
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    """Returns whether a process runs; a zombie, whose parent has not waited for it yet, does not."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone(*pids: int) -> Callable[[], bool]:
    return lambda: not any(alive(pid) for pid in pids)
