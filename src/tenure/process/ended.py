"""The requests that a process has seen end lately, by id: what a cancel of one of them is answered."""

from collections import OrderedDict

from tenure.wire.messages import CancelledRequest

REMEMBERED = 10_000


class EndedRequests:
    """The latest `REMEMBERED` requests."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, CancelledRequest] = OrderedDict()

    def note(self, request: CancelledRequest) -> None:
        """A request has ended; what was noted of its id before is replaced."""
        self._requests[request.id] = request
        self._requests.move_to_end(request.id)
        if len(self._requests) > REMEMBERED:
            self._requests.popitem(last=False)

    def get(self, request_id: str) -> CancelledRequest | None:
        return self._requests.get(request_id)
