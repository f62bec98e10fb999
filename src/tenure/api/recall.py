"""What an API process answers to names of requests that are to end, which an engine passes on.

It is the one that decides how a request has ended, since its client is told so; and what is decided stays, so that a
repeat gets the same answer. Whatever is open and undecided is aborted, wherever it is: on its way to an engine, which
may refuse it while the next one has dealt with the names already; in an engine, which ends it by itself as well and
tells how long that took; or behind it, with an answer that its client does not read. Those that have ended are
remembered, also when their engine is gone.
"""

from collections.abc import Iterable

from tenure.api import errors
from tenure.api.visit import Visit
from tenure.process.ended import EndedRequests
from tenure.wire.messages import CancelledRequest, Recall


def recall(visits: Iterable[Visit], ended: EndedRequests, names: Recall) -> list[CancelledRequest]:
    """End those of the open `visits` that are named; returns them, and of the `ended` requests those named by id."""
    ids, labels = frozenset(names.ids), frozenset(names.labels)
    found = [request for request_id in names.ids if (request := ended.get(request_id)) is not None]
    for visit in tuple(visits):
        arrival = visit.arrival
        named = arrival.request_id in ids or (arrival.label in labels and visit.terms.owner == names.owner)
        if not named or not visit.work:
            continue
        if not visit.decided:
            visit.fail(errors.aborted("The request was ended by its id or label."))
            visit.scope.cancel()
        found.append(CancelledRequest(arrival.request_id, visit.outcome(), 0.0))
    return found
