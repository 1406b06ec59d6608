"""The estimate of what a worker has cached."""

from hypothesis import given
from hypothesis import strategies as st

from v4_router.prefix_index import PrefixIndex


def chain(*path: str) -> list[bytes]:
    """Returns the names of a chain's blocks; each name depends on all blocks before it."""
    return ["/".join(path[: i + 1]).encode() for i in range(len(path))]


def test_matches_the_common_prefix() -> None:
    index = PrefixIndex()
    index.record(chain("a", "b", "c"))
    assert index.match(chain("a", "b", "x")) == 2
    assert index.match(chain("x")) == 0
    assert index.match([]) == 0


def test_leaves_are_forgotten_before_roots() -> None:
    index = PrefixIndex(3)
    index.record(chain("a", "b", "c"))
    index.record(chain("d"))
    assert index.match(chain("a", "b", "c")) == 2
    assert index.match(chain("d")) == 1
    assert len(index) == 3


def test_the_workers_report_corrects_the_guess() -> None:
    index = PrefixIndex()
    index.record(chain("a", "b", "c", "d"))
    index.correct(chain("a", "b", "x"), 1)  # the worker had evicted b, so c and d no longer match
    assert index.match(chain("a", "b", "x")) == 3  # the worker computes them now
    assert index.match(chain("a", "b", "c", "d")) == 2


def test_a_new_process_has_nothing() -> None:
    index = PrefixIndex()
    index.record(chain("a"))
    index.clear()
    assert index.match(chain("a")) == 0


@given(st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from("ab"), max_size=5), st.integers(0, 5)), max_size=30))
def test_the_index_stays_within_its_bound_and_has_only_what_was_sent(steps: list[tuple[bool, list[str], int]]) -> None:
    index, sent = PrefixIndex(6), set()
    for corrects, path, cached in steps:
        names = chain(*path)
        sent.update(names)
        if corrects:
            index.correct(names, cached)
        else:
            index.record(names)
        assert len(index) <= 6
        assert all(name in sent for name in names[: index.match(names)])
