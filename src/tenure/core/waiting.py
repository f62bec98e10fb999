"""The waiting queue: items that wait for a slot, oldest first, at a cost that does not grow with its length.

"Oldest" is by virtual start (fair queueing over requests), so a request of many items does not delay a small one.
"""

import heapq
from typing import NamedTuple

from tenure.core.request import Item, Request

_COMPACT_ABOVE = 64


_Entry = tuple[tuple[int, int, int, int], int, Item]


class WaitingQueue:
    """Heaps by age: the items of each request, and the heads of those heaps. Stalled requests are passed over.

    An entry of what has left, or of a request that is stalled, stays behind until it surfaces or such entries abound.
    """

    def __init__(self) -> None:
        self._items: dict[Request, list[_Entry]] = {}
        self._heads: list[_Entry] = []
        self._live: dict[Item, int] = {}  # the number of its living entry
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._live)

    def __contains__(self, item: Item) -> bool:
        return item in self._live

    def push(self, item: Item) -> None:
        self._pushed += 1
        self._live[item] = self._pushed
        entry = (item.age, self._pushed, item)
        entries = self._items.setdefault(item.request, [])
        heapq.heappush(entries, entry)
        if entries[0] is entry:
            self.offer(item.request)

    def head(self) -> Item | None:
        """The oldest item whose request is not stalled, left in place."""
        while self._heads and (not self._alive(self._heads[0]) or self._heads[0][2].request.stalled):
            heapq.heappop(self._heads)
        return self._heads[0][2] if self._heads else None

    def remove(self, item: Item) -> None:
        """Take any item out; raises KeyError when it is not there."""
        del self._live[item]
        self.offer(item.request)

    def offer(self, request: Request) -> None:
        """The oldest item of a request may be the head, now that it has come, that another has left or is resumed."""
        entries = self._items.get(request, [])
        while entries and not self._alive(entries[0]):
            heapq.heappop(entries)
        if entries:
            heapq.heappush(self._heads, entries[0])
        else:
            self._items.pop(request, None)
        if len(self._heads) > _COMPACT_ABOVE + 2 * len(self._items):
            self._heads = [entries[0] for request, entries in self._items.items() if not request.stalled]
            heapq.heapify(self._heads)

    def _alive(self, entry: _Entry) -> bool:
        return self._live.get(entry[2]) == entry[1]


class Startable(NamedTuple):
    """An item that may start, and the blocks for it."""

    item: Item
    matched: list[int]
    """Blocks of the prefix cache that have its first `start` tokens."""
    start: int
    fresh: int
    """The number of further blocks that it needs."""


class FairShare:
    """Start-time fair queueing over requests (Goyal, Vin and Cheng, 1996), in prompt tokens.

    The virtual start of an item is the virtual time at its request's arrival plus the tokens of the request's items
    before it. The virtual time is the greatest virtual start of an item that was started.
    """

    def __init__(self) -> None:
        self._now = 0

    def assign(self, request: Request) -> None:
        """Set `virtual_start` of the items of a request that has just arrived."""
        virtual_start = self._now
        for item in request.items:
            item.virtual_start = virtual_start
            virtual_start += item.prompt_length

    def note_start(self, item: Item) -> None:
        """An item has left the queue to be computed."""
        self._now = max(self._now, item.virtual_start)
