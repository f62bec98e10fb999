"""What an API process answers to names of requests that are to end, which an engine passes on.

It ends those that no engine has admitted, and remembers those that have ended, also when their engine is gone.

One that an engine has been asked for is among the former: it may be refused there, and another be asked that has dealt
with the names already. If it is admitted after all, its cancelled scope ends it there.
"""

from collections.abc import Iterable

from tenure.api import errors
from tenure.api.visit import Visit
from tenure.outcomes import Outcome
from tenure.process.ended import EndedRequests
from tenure.wire.messages import CancelledRequest, Recall


def recall(visits: Iterable[Visit], ended: EndedRequests, names: Recall) -> list[CancelledRequest]:
    """End those of the open `visits` that are named and in no engine; what an engine has admitted it ends itself.

    Returns these, and of the `ended` requests those that are named by id.
    """
    ids, labels = frozenset(names.ids), frozenset(names.labels)
    found = [request for request_id in names.ids if (request := ended.get(request_id)) is not None]
    for visit in tuple(visits):
        arrival = visit.arrival
        named = arrival.request_id in ids or (arrival.label in labels and visit.terms.owner == names.owner)
        if named and visit.work and not visit.decided and not visit.journal.asked.generations:
            visit.fail(errors.aborted("The request was ended by its id or label."))
            visit.scope.cancel()
            found.append(CancelledRequest(arrival.request_id, Outcome.ABORTED, 0.0))
    return found
