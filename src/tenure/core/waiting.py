"""The queue of items that wait for a slot: oldest first, at a cost that does not grow with its length.

"Oldest" is by turns, as requests come with many items: a large one does not keep a small one waiting.
"""

import heapq
from typing import NamedTuple

from tenure.core.request import Item, Request

_COMPACT_ABOVE = 64


class WaitingQueue:
    """A heap by age. An item that leaves early stays behind as a dead entry, until it surfaces or dead ones abound."""

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[int, int, int, int], int, Item]] = []
        self._live: dict[Item, int] = {}  # the number of its living entry
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def push(self, item: Item) -> None:
        self._pushed += 1
        self._live[item] = self._pushed
        heapq.heappush(self._heap, (item.age, self._pushed, item))

    def head(self) -> Item | None:
        """The oldest item, left in place."""
        while self._heap and not self._alive(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][2] if self._heap else None

    def remove(self, item: Item) -> None:
        """Take any item out; raises KeyError when it is not there."""
        del self._live[item]
        if len(self._heap) > _COMPACT_ABOVE and len(self._heap) > 2 * len(self._live):
            self._heap = [entry for entry in self._heap if self._alive(entry)]
            heapq.heapify(self._heap)

    def _alive(self, entry: tuple[tuple[int, int, int, int], int, Item]) -> bool:
        return self._live.get(entry[2]) == entry[1]


class Startable(NamedTuple):
    """An item that may leave the queue, and with what."""

    item: Item
    matched: list[int]
    """Blocks of the prefix cache that have its first `start` tokens."""
    start: int
    fresh: int
    """Blocks that it needs beside them."""


class FairShare:
    """Gives out turns (start-time fair queueing, Goyal, Vin and Cheng, 1996).

    An item's turn comes when its request, had it shared the engine evenly with the others since its arrival, would be
    done with the items before it. Time is counted in tokens, and stands where the item started last had its turn.
    """

    def __init__(self) -> None:
        self._now = 0

    def give_turns(self, request: Request) -> None:
        """Set the turns of the items of a request that has just arrived."""
        turn = self._now
        for item in request.items:
            item.turn = turn
            turn += item.prompt_length

    def note_start(self, item: Item) -> None:
        """An item has left the queue to be computed."""
        self._now = max(self._now, item.turn)
