"""The queue of caches that wait for room on a decode worker. Pure.

First come, first served among caches of one kind; kinds do not wait for each other, since a worker serves one kind
only. A waiter whose cache is computed again keeps its place meanwhile, and does not block the others. Reading the front
takes O(1) amortized, whatever the length of the queue; joining takes O(log n).
"""

import heapq
from collections.abc import Hashable
from dataclasses import dataclass, field
from itertools import count
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Kind = TypeVar("Kind", bound=Hashable)
Item = TypeVar("Item")


@dataclass(order=True, slots=True)
class Waiting(Generic[Key, Kind, Item]):
    """One cache in the queue."""

    place: int
    serial: int  # orders those that share an inherited place by when they began to wait
    key: Key = field(compare=False)
    kind: Kind = field(compare=False)
    item: Item = field(compare=False)


class RoomQueue(Generic[Key, Kind, Item]):
    """`key` identifies who waits, `kind` says for which workers, `item` is the caller's."""

    def __init__(self) -> None:
        self._numbers = count()
        self._places: dict[Key, int] = {}
        self._waiting: dict[Key, Waiting[Key, Kind, Item]] = {}
        self._heaps: dict[Kind, list[Waiting[Key, Kind, Item]]] = {}  # may hold entries that wait no more

    def __len__(self) -> int:
        return len(self._waiting)

    def kind_of(self, key: Key) -> Kind | None:
        """Returns the kind that `key` waits for. Returns None if it does not wait."""
        return self._waiting[key].kind if key in self._waiting else None

    def join(self, key: Key, kind: Kind, item: Item) -> None:
        """Waits: at the place that `key` kept, else at the end."""
        number = next(self._numbers)
        entry = Waiting(self._places.setdefault(key, number), number, key, kind, item)
        self._waiting[key] = entry
        heapq.heappush(self._heaps.setdefault(kind, []), entry)

    def hold(self, key: Key) -> None:
        """Stops the waiting of `key`, but keeps its place."""
        self._waiting.pop(key, None)

    def leave(self, key: Key) -> None:
        """Gives up the place of `key`."""
        self._waiting.pop(key, None)
        self._places.pop(key, None)

    def inherit(self, parent: Key, child: Key) -> None:
        """Gives `child` the place of `parent` too, if it has one."""
        if (place := self._places.get(parent)) is not None:
            self._places[child] = place

    def first(self, kind: Kind) -> Waiting[Key, Kind, Item] | None:
        """Returns whoever of this kind has the first place and waits. Returns None if nobody waits."""
        heap = self._heaps.get(kind, [])
        while heap and self._waiting.get(heap[0].key) is not heap[0]:
            heapq.heappop(heap)
        if heap:
            return heap[0]
        self._heaps.pop(kind, None)
        return None

    def waiting(self, kind: Kind) -> list[Waiting[Key, Kind, Item]]:
        """Returns all of this kind that wait, in no particular order; O(n)."""
        return [entry for entry in self._waiting.values() if entry.kind == kind]

    def kinds(self) -> set[Kind]:
        """Returns the kinds of all that wait; O(n)."""
        return {entry.kind for entry in self._waiting.values()}
