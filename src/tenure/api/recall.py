"""Requests that are ended by name before any engine has admitted them: an engine passes the names on.

One that an engine has been asked for is among them: it may be refused there, and another be asked that has dealt with
the names already. If it is admitted after all, its cancelled scope ends it there.
"""

from collections.abc import Iterable

from tenure.api import errors
from tenure.api.visit import Visit
from tenure.outcomes import Outcome
from tenure.wire.messages import CancelledRequest, Recall


def recall(visits: Iterable[Visit], names: Recall) -> list[CancelledRequest]:
    """End those of the open `visits` that are named and in no engine; what an engine has admitted it ends itself."""
    ids, labels = frozenset(names.ids), frozenset(names.labels)
    ended = []
    for visit in tuple(visits):
        arrival = visit.arrival
        named = arrival.request_id in ids or (arrival.label in labels and visit.terms.owner == names.owner)
        if named and visit.work and not visit.decided and not visit.journal.asked.generations:
            visit.fail(errors.aborted("The request was ended by its id or label."))
            visit.scope.cancel()
            ended.append(CancelledRequest(arrival.request_id, Outcome.ABORTED, 0.0))
    return ended
