"""What an API process answers to names of requests that are to end, which an engine passes on.

It is the one that decides how a request has ended, since its client is told so. Those that no engine has admitted it
ends itself; of those that an engine computes it decides that they are aborted, and leaves it to the engine to end them.
One that has all of its answer goes on: it is over as soon as its client has read it. Those that have ended are
remembered, also when their engine is gone.

One that an engine has been asked for is not admitted: it may be refused there, and another be asked that has dealt
with the names already. If it is admitted after all, its cancelled scope ends it there.
"""

from collections.abc import Iterable

from tenure.api import errors
from tenure.api.visit import Visit
from tenure.process.ended import EndedRequests
from tenure.wire.messages import CancelledRequest, Recall


def recall(visits: Iterable[Visit], ended: EndedRequests, names: Recall) -> list[CancelledRequest]:
    """Decide the end of those of the open `visits` that are named.

    Returns those that are decided, and of the `ended` requests those that are named by id.
    """
    ids, labels = frozenset(names.ids), frozenset(names.labels)
    found = [request for request_id in names.ids if (request := ended.get(request_id)) is not None]
    for visit in tuple(visits):
        arrival = visit.arrival
        named = arrival.request_id in ids or (arrival.label in labels and visit.terms.owner == names.owner)
        if not named or not visit.work:
            continue
        if not visit.journal.answered:
            visit.fail(errors.aborted("The request was ended by its id or label."))
        if visit.decided:
            found.append(CancelledRequest(arrival.request_id, visit.outcome(), 0.0))
        if not visit.journal.asked.generations:
            visit.scope.cancel()
    return found
