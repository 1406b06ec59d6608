"""How the tokens of one step are divided among sequences."""

import pytest

from v4_engine.schedule import Work, divide
from v4_engine.sequence import Request, Sequence


def running(tokens: int, computed: int = 0, boundaries: tuple[int, ...] = (), prompt: int | None = None) -> Sequence:
    """A sequence of `tokens`, all of them its prompt unless `prompt` says how many."""
    ids = [3] * tokens
    request = Request((f"{tokens}", 0), "whole", ids[: prompt or tokens])
    sequence = Sequence(request, 0, ids)
    sequence.computed, sequence.boundaries = computed, list(boundaries)
    return sequence


def shares(work: list[Work]) -> list[tuple[int, int]]:
    """(length of the sequence, tokens that it computes) of each piece of work."""
    return [(len(w.sequence.ids), w.count) for w in work]


def test_decoding_sequences_come_first_and_prompts_share_the_rest_in_order() -> None:
    sequences = [running(500, 100), running(41, 40), running(300), running(61, 60), running(700)]
    assert shares(divide(sequences, 602, [])) == [(41, 1), (61, 1), (500, 400), (300, 200)]
    assert shares(divide(sequences, 2, [])) == [(41, 1), (61, 1)]


def test_a_boundary_inside_a_chunk_is_captured_while_scratch_tails_last() -> None:
    sequences = [running(600, 0, (256, 512)), running(700, 200, (256,))]
    scratch = [6, 7, 8]
    first, second = divide(sequences, 1000, scratch)
    assert (first.count, first.captures) == (600, ((256, 8), (512, 7)))
    assert (second.count, second.captures) == (400, ((256, 6),))
    assert scratch == []


def test_without_a_scratch_tail_a_chunk_ends_at_the_boundary() -> None:
    sequences = [running(600, 0, (256, 512)), running(900)]
    assert shares(divide(sequences, 1000, [])) == [(600, 256), (900, 744)], "the next prompt gets what is left"
    (work,) = divide([running(600, 0, (256, 512))], 1000, [5])
    assert (work.count, work.captures) == (512, ((256, 5),))


def test_a_boundary_at_the_end_of_a_chunk_needs_no_scratch_tail() -> None:
    scratch = [5]
    (work,) = divide([running(600, 0, (256,))], 256, scratch)
    assert (work.count, work.captures, scratch) == (256, (), [5])


@pytest.mark.parametrize(
    ("tokens", "computed", "prompt", "expected"),
    [
        (300, 100, 300, True),
        (300, 299, 300, True),  # the last token of a prompt, alone
        (301, 300, 300, False),
        (340, 256, 300, True),  # recomputed after preemption
    ],
)
def test_work_is_of_a_prompt_until_the_sequence_decodes(
    tokens: int, computed: int, prompt: int, expected: bool
) -> None:
    assert Work(running(tokens, computed, prompt=prompt), 1).of_prompt is expected
