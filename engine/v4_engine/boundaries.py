"""Where a sequence's cache begins, and at which boundaries its state is kept: pure functions of lengths.

All depths and boundaries are in tokens and multiples of 256, except where a replay begins.
"""

from dataclasses import dataclass

from v4_core.blocks import BLOCK_TOKENS, hit_limit


@dataclass(frozen=True)
class Resume:
    """How a prompt starts on the blocks that exist."""

    start: int  # first position to compute; so many tokens are cached
    write_from: int  # entries that close before this position exist
    valid_from: int  # first position whose raw rows exist or will be computed
    exact_from: int  # first boundary whose tail is exact: inside a replay it is not
    restore: bool  # the checkpoint at `start` is unpacked into the tail


def resume(matched: int, checkpoint: int, layers: int, window: int) -> Resume:
    """From `matched` tokens of blocks, of which the deepest checkpoint is at `checkpoint` (0 = none).

    Behind the checkpoint, or where none is near, tokens whose entries exist run again and only the tail is kept. A
    replay of layers*(window-1) tokens is exact, a shorter one is not (reference 5.6); one from 0 always is.
    """
    replay = max(0, matched - layers * (window - 1))
    if checkpoint >= replay:
        return Resume(checkpoint, matched, 0, checkpoint, restore=checkpoint > 0)
    return Resume(replay, matched, replay, matched, restore=False)


def checkpoint_boundaries(tokens: int, exact_from: int, junction: int | None, every: int) -> list[int]:
    """Boundaries in exact_from <= b <= tokens at which a prompt of `tokens` keeps its state, ascending.

    The longest hit of the same prompt (hit_limit, which the reader uses too), the end if it is a boundary, the junction
    where the prompt left an existing chain, and every `every` blocks (0 = none).
    """
    wanted = {hit_limit(tokens)}
    if tokens % BLOCK_TOKENS == 0:
        wanted.add(tokens)
    if junction is not None:
        wanted.add(junction)
    if every:
        wanted.update(range(every * BLOCK_TOKENS, tokens + 1, every * BLOCK_TOKENS))
    return sorted(b for b in wanted if max(exact_from, 1) <= b <= tokens)
