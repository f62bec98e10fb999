"""The requests that have ended most recently in a process, by id; the answers to cancels that come too late."""

from collections import OrderedDict

from tenure.wire.messages import CancelledRequest

REMEMBERED = 10_000


class EndedRequests:
    """How the latest `REMEMBERED` requests have ended, by id."""

    def __init__(self) -> None:
        self._requests: OrderedDict[str, CancelledRequest] = OrderedDict()

    def note(self, request: CancelledRequest) -> None:
        """Store the end of a request; replaces an earlier entry of the same id."""
        self._requests[request.id] = request
        self._requests.move_to_end(request.id)
        if len(self._requests) > REMEMBERED:
            self._requests.popitem(last=False)

    def get(self, request_id: str) -> CancelledRequest | None:
        return self._requests.get(request_id)
