"""Where a prompt resumes on cached blocks, and at which boundaries its state is kept: pure functions of lengths.

All depths and boundaries are numbers of tokens. They are multiples of 256, except the start of a replay.
"""

from dataclasses import dataclass

from v4_core.blocks import BLOCK_TOKENS, hit_limit


@dataclass(frozen=True)
class Resume:
    """How a prompt starts on the blocks that the prefix cache has."""

    start: int  # first position to compute, so also the number of cached tokens
    write_from: int  # entries that close before this position exist already
    valid_from: int  # first position whose raw rows exist or are computed
    exact_from: int  # first boundary at which the tail is exact; inside a replay it is not
    restore: bool  # whether the checkpoint at `start` is unpacked into the tail


def resume(matched: int, checkpoint: int, layers: int, window: int) -> Resume:
    """Decide where a prompt resumes: its first `matched` tokens have blocks, the deepest checkpoint is at `checkpoint`.

    A `checkpoint` of 0 means that there is none. The prompt resumes at the checkpoint, or by a replay if the replay
    starts later. Either way the tokens up to `matched` are computed again for the tail alone, since their entries
    exist. A replay is exact if it has layers*(window-1) tokens or starts at position 0; a shorter one is not (reference
    5.6).
    """
    replay = max(0, matched - layers * (window - 1))
    if checkpoint >= replay:
        return Resume(checkpoint, matched, 0, checkpoint, restore=checkpoint > 0)
    return Resume(replay, matched, replay, matched, restore=False)


def checkpoint_boundaries(tokens: int, exact_from: int, junction: int | None, every: int) -> list[int]:
    """Return the boundaries exact_from <= b <= tokens at which a prompt of `tokens` keeps its state, ascending.

    These are the longest prefix that the same prompt can hit (`hit_limit`, which the lookup uses too), the end of the
    prompt if that is a boundary, the junction where the prompt leaves an existing chain of blocks, and every `every`
    blocks (0 = none).
    """
    wanted = {hit_limit(tokens)}
    if tokens % BLOCK_TOKENS == 0:
        wanted.add(tokens)
    if junction is not None:
        wanted.add(junction)
    if every:
        wanted.update(range(every * BLOCK_TOKENS, tokens + 1, every * BLOCK_TOKENS))
    return sorted(b for b in wanted if max(exact_from, 1) <= b <= tokens)
