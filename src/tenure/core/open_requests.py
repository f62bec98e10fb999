"""The open requests of an engine, the states of their items, and their deadlines.

    add --> open --(all items ended, every lease free)--> closed: returned once, with its outcome, and forgotten

Owned by the scheduler. `states` counts their unfinished items by state, `apply` being the only way to change one.
A deadline is an entry in a heap, which surfaces when its time has come, or is dropped when dead entries abound.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import IntEnum

from tenure.core.ledger import LedgerError
from tenure.core.lifecycle import Event, State
from tenure.core.request import Item, Request
from tenure.outcomes import Outcome

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


class OpenRequests:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.states: Counter[State] = Counter()
        self._requests: dict[int, Request] = {}
        self._deadlines: list[tuple[float, int, Deadline, Request]] = []
        self._arrivals = 0
        self._items = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        """Oldest first."""
        return iter(self._requests.values())

    def add(self, request: Request) -> None:
        """Give the request and its items their numbers. Raises `LedgerError` for a number that is in use."""
        if request.number in self._requests:
            raise LedgerError(f"request {request.number} exists already")
        self._arrivals += 1
        request.arrival = self._arrivals
        self._requests[request.number] = request
        for item in request.items:
            self._items += 1
            item.number = self._items
            self.states[item.state] += 1
        for kind, time in ((Deadline.BEGIN, request.spec.begin_by), (Deadline.END, request.spec.end_by)):
            if time is not None:
                heapq.heappush(self._deadlines, (time, request.arrival, kind, request))

    def find(self, number: int) -> Request | None:
        """The request, unless its outcome is decided."""
        request = self._requests.get(number)
        return request if request is not None and request.outcome is None else None

    def apply(self, item: Item, event: Event) -> None:
        """Move an item on in its lifecycle."""
        before = item.state
        item.apply(event)
        self.states[before] -= 1
        self.states[item.state] += not item.ended

    def close(self, requests: Iterable[Request]) -> list[Request]:
        """Those of `requests` that are over; they are forgotten here, so each is returned once."""
        over = [request for request in requests if request.over]
        for request in over:
            request.outcome = request.outcome or Outcome.OK
            del self._requests[request.number]
        if len(self._deadlines) > _COMPACT_ABOVE + 4 * len(self._requests):
            self._deadlines = [entry for entry in self._deadlines if self._pending(entry)]
            heapq.heapify(self._deadlines)
        return over

    @property
    def next_deadline(self) -> float | None:
        """The time of the earliest deadline; None without one."""
        while self._deadlines and not self._pending(self._deadlines[0]):
            heapq.heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def expired(self, now: float) -> list[tuple[Request, str]]:
        """The requests whose deadline has passed, each once, with the message for its client."""
        found: dict[int, tuple[Request, str]] = {}
        while (due := self.next_deadline) is not None and due <= now:
            _, _, kind, request = heapq.heappop(self._deadlines)
            found.setdefault(request.number, (request, _MESSAGES[kind]))
        return list(found.values())

    def _pending(self, entry: tuple[float, int, Deadline, Request]) -> bool:
        _, _, kind, request = entry
        if request.outcome is not None:
            return False
        return kind is Deadline.END or not request.begun

    def audit(self) -> None:
        """Recount; raises `LedgerError` when the states differ from the items'."""
        if any(list(request.unfinished) != [item for item in request.items if not item.ended] for request in self):
            raise LedgerError("an item that has ended counts as unfinished, or the other way round")
        states = Counter(item.state for request in self for item in request.unfinished)
        if states != +self.states:
            raise LedgerError(f"item counts {self.states} differ from the items {states}")
