"""The open requests of an engine, and the states of their items.

    add --> open --(all items ended, nothing held by them or by steps)--> closed: returned once, and forgotten

Owned by the scheduler. `states` counts their unfinished items by state, `apply` being the only way to change one.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from tenure.core.ledger import LedgerError
from tenure.core.lifecycle import Event, State
from tenure.core.request import Item, Request
from tenure.outcomes import Outcome


class OpenRequests:
    """See the module's docstring."""

    def __init__(self) -> None:
        self.states: Counter[State] = Counter()
        self._requests: dict[int, Request] = {}
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
        return over

    def audit(self) -> None:
        """Recount; raises `LedgerError` when the states differ from the items'."""
        if any(list(request.unfinished) != [item for item in request.items if not item.ended] for request in self):
            raise LedgerError("an item that has ended counts as unfinished, or the other way round")
        states = Counter(item.state for request in self for item in request.unfinished)
        if states != +self.states:
            raise LedgerError(f"item counts {self.states} differ from the items {states}")
