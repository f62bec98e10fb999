"""What an API process answers to names of requests that are to end, which an engine passes on.

It is the one that decides how a request has ended, since its client is told so; and what is decided stays, so that a
repeat gets the same answer. Whatever is open and undecided is aborted, wherever it is: on its way to an engine, which
may refuse it while the next one has dealt with the names already; in an engine, which ends it by itself as well and
tells how long that took; or behind it, with an answer that its client does not read. Those that have ended are
remembered, also when their engine is gone.
"""

from collections.abc import Iterable

from tenure.http import errors
from tenure.http.exchange import Exchange
from tenure.process.ended import EndedRequests
from tenure.wire.messages import CancelledRequest, Recall


def recall(exchanges: Iterable[Exchange], ended: EndedRequests, names: Recall) -> list[CancelledRequest]:
    """End those of the open `exchanges` that are named; returns them, and of the `ended` requests those named by id."""
    ids, labels = frozenset(names.ids), frozenset(names.labels)
    found = [request for request_id in names.ids if (request := ended.get(request_id)) is not None]
    for exchange in tuple(exchanges):
        head = exchange.head
        named = head.request_id in ids or (head.label in labels and exchange.options.owner == names.owner)
        if not named or not exchange.work:
            continue
        if not exchange.decided:
            exchange.fail(errors.aborted("The request was ended by its id or label."))
            exchange.scope.cancel()
        found.append(CancelledRequest(head.request_id, exchange.outcome(), 0.0))
    return found
