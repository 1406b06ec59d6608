"""Tables of where a prompt resumes and at which boundaries its state is kept."""

import pytest

from v4_engine.boundaries import Resume, checkpoint_boundaries, resume


@pytest.mark.parametrize(
    ("matched", "checkpoint", "expected"),
    [
        (0, 0, Resume(0, 0, 0, 0, restore=False)),
        (256, 0, Resume(0, 256, 0, 0, restore=False)),  # from the start, exact everywhere
        (256, 256, Resume(256, 256, 0, 256, restore=True)),
        (1024, 256, Resume(389, 1024, 389, 1024, restore=False)),  # 5 * 127 tokens before 1024
        (1024, 512, Resume(512, 1024, 0, 512, restore=True)),  # later than the start of a replay
        (10_240, 1024, Resume(9605, 10_240, 9605, 10_240, restore=False)),
    ],
)
def test_resume(matched: int, checkpoint: int, expected: Resume) -> None:
    assert resume(matched, checkpoint, layers=5, window=128) == expected


@pytest.mark.parametrize(
    ("tokens", "exact_from", "junction", "every", "expected"),
    [
        (1, 0, None, 0, []),
        (256, 0, None, 0, [256]),
        (257, 0, None, 0, [256]),
        (512, 0, None, 0, [256, 512]),
        (1000, 0, 256, 0, [256, 768]),
        (1000, 512, 256, 0, [768]),
        (1000, 768, None, 0, [768]),  # the end of a replay, where the tail is exact
        (1100, 0, None, 2, [512, 1024]),
        (1100, 600, None, 1, [768, 1024]),
    ],
)
def test_checkpoint_boundaries(
    tokens: int, exact_from: int, junction: int | None, every: int, expected: list[int]
) -> None:
    assert checkpoint_boundaries(tokens, exact_from, junction, every) == expected
