"""The queue for room against a plain list that is searched from its front."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from v4_router.room_queue import RoomQueue

KEYS = st.integers(0, 5)
KINDS = st.sampled_from("ab")


@dataclass
class Place:
    """One entry of the plain list."""

    number: int
    key: int
    kind: str | None = None  # None: it does not wait
    since: int = 0


class PlainQueue:
    """All places in order of their numbers."""

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.count = 0

    def _find(self, key: int) -> Place | None:
        return next((place for place in self.places if place.key == key), None)

    def join(self, key: int, kind: str) -> None:
        self.count += 1
        place = self._find(key)
        if place is None:
            place = Place(self.count, key)
            self.places.append(place)
        place.kind, place.since = kind, self.count

    def hold(self, key: int) -> None:
        if (place := self._find(key)) is not None:
            place.kind = None

    def leave(self, key: int) -> None:
        self.places = [place for place in self.places if place.key != key]

    def inherit(self, parent: int, child: int) -> None:
        if (place := self._find(parent)) is not None:
            self.leave(child)
            self.places.append(Place(place.number, child))

    def waiting(self, kind: str) -> list[int]:
        waiting = [place for place in self.places if place.kind == kind]
        return [place.key for place in sorted(waiting, key=lambda place: (place.number, place.since))]


OPERATIONS = st.one_of(
    st.tuples(st.just("join"), KEYS, KINDS),
    st.tuples(st.just("hold"), KEYS),
    st.tuples(st.just("leave"), KEYS),
    st.tuples(st.just("inherit"), KEYS, st.integers(6, 11)),
    st.tuples(st.just("join"), st.integers(6, 11), KINDS),
    st.tuples(st.just("serve"), KINDS),
)


@given(st.lists(OPERATIONS, max_size=60))
def test_first_come_first_served_within_each_kind(operations: list[tuple[str, int, str]]) -> None:
    queue: RoomQueue[int, str, str] = RoomQueue()
    plain = PlainQueue()
    for operation in operations:
        match operation:
            case "join", key, kind:
                queue.join(key, kind, f"{key} of {kind}")
                plain.join(key, kind)
            case "serve", kind:
                if (first := queue.first(str(kind))) is not None:
                    queue.hold(first.key)
                    plain.hold(first.key)
            case name, *keys:
                if name == "inherit" and queue.kind_of(int(keys[1])) is not None:
                    continue  # a child is new: it does not wait yet
                getattr(queue, name)(*keys)
                getattr(plain, name)(*keys)
        for kind in "ab":
            expected = plain.waiting(kind)
            first = queue.first(kind)
            assert (first and first.key) == (expected[0] if expected else None)
            assert first is None or first.item == f"{first.key} of {kind}"
            assert sorted(entry.key for entry in queue.waiting(kind)) == sorted(expected)
        assert queue.kinds() == {kind for kind in "ab" if plain.waiting(kind)}
        assert len(queue) == len(plain.waiting("a")) + len(plain.waiting("b"))


def test_a_kept_place_is_before_later_ones() -> None:
    queue: RoomQueue[str, str, None] = RoomQueue()
    for key in ("first", "second"):
        queue.join(key, "a", None)
    queue.hold("first")
    assert (front := queue.first("a")) is not None
    assert front.key == "second", "it blocks nobody meanwhile"
    queue.inherit("first", "child")
    queue.leave("first")
    queue.join("child", "a", None)
    assert (front := queue.first("a")) is not None
    assert front.key == "child"


def test_kinds_do_not_wait_for_each_other() -> None:
    queue: RoomQueue[str, str, None] = RoomQueue()
    queue.join("first", "a", None)
    queue.join("second", "b", None)
    assert (front := queue.first("b")) is not None
    assert front.key == "second"


def test_nothing_is_kept_of_those_that_left() -> None:
    """The queue of a router that runs for months keeps nothing of those it served."""
    queue: RoomQueue[int, str, None] = RoomQueue()
    for key in range(100):
        queue.join(key, "a", None)
    for key in range(100):
        queue.leave(key)
    assert queue.first("a") is None
    assert (queue._places, queue._waiting, queue._heaps) == ({}, {}, {})
