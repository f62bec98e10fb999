"""The deadlines of requests: an entry in a heap, which surfaces when its time has come, or is dropped once it is dead.

Runs beside the scheduler, which is told of what is late by a cancel as any other.
"""

import heapq
from enum import IntEnum

from tenure.core.request import Request

_COMPACT_ABOVE = 64


class Deadline(IntEnum):
    """What must have happened by the deadline."""

    BEGIN = 0
    """Some item has run."""
    END = 1
    """The request is over."""


_MESSAGES = {
    Deadline.BEGIN: "the request waited longer in the queue than it may",
    Deadline.END: "the request took longer than it may",
}


class Deadlines:
    """See the module's docstring. Times are on any clock that does not go back."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Deadline, Request]] = []
        self._compact_above = _COMPACT_ABOVE

    def add(self, request: Request) -> None:
        """Watch the deadlines of a request that the scheduler was given."""
        for kind, time in zip(Deadline, request.spec.due, strict=True):
            if time is not None:
                heapq.heappush(self._heap, (time, request.arrival, kind, request))
        if len(self._heap) > self._compact_above:
            self._heap = [entry for entry in self._heap if self._pending(entry)]
            heapq.heapify(self._heap)
            self._compact_above = _COMPACT_ABOVE + 2 * len(self._heap)

    @property
    def next(self) -> float | None:
        """The time of the earliest deadline; None without one."""
        while self._heap and not self._pending(self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def expired(self, now: float) -> list[tuple[Request, str]]:
        """The requests whose deadline has passed, each once, with the message for its client."""
        found: dict[int, tuple[Request, str]] = {}
        while (due := self.next) is not None and due <= now:
            _, _, kind, request = heapq.heappop(self._heap)
            found.setdefault(request.number, (request, _MESSAGES[kind]))
        return list(found.values())

    def _pending(self, entry: tuple[float, int, Deadline, Request]) -> bool:
        _, _, kind, request = entry
        if request.outcome is not None:
            return False
        return kind is Deadline.END or not request.begun
