"""Cancels by name on their way through the engine: from the API process that was asked to those that serve them.

An id tells which API process that is, so it alone is asked; for labels all are. For one that is gone the engine
answers: it remembers how requests have ended, and waits for those that still end because their connection is lost. The
engine's I/O thread is the only one that touches this object.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from tenure.outcomes import Outcome
from tenure.process.ended_requests import EndedRequests
from tenure.request_id import process_of
from tenure.wire.messages import CancelByName, CancelledByName, CancelledRequest


@dataclass(slots=True)
class _PendingCancel:
    """A cancel from connection `requester`. `asked`: the connections that have yet to answer, and the ids for each."""

    requester: int
    sequence: int
    asked: dict[int, list[str]] = field(default_factory=dict)
    unreached: list[str] = field(default_factory=list)
    requests: list[CancelledRequest] = field(default_factory=list)


class CancelRelay:
    """See the module's docstring. Connections and cancels have the engine's numbers."""

    def __init__(self) -> None:
        self._pending: dict[int, _PendingCancel] = {}
        self._ended = EndedRequests()
        self._orphans: set[str] = set()

    def ask(
        self, number: int, requester: int, names: CancelByName, processes: Mapping[str, int]
    ) -> Mapping[int, CancelByName]:
        """Take a cancel; returns the messages to send, by connection. `processes`: their process names."""
        pending = self._pending[number] = _PendingCancel(requester, names.sequence)
        if names.labels:
            pending.asked = {process: [] for process in processes.values()}
        for request_id in names.ids:
            process = processes.get(process_of(request_id))
            ids = pending.unreached if process is None else pending.asked.setdefault(process, [])
            ids.append(request_id)
        return {
            process: msgspec.structs.replace(names, sequence=number, ids=ids) for process, ids in pending.asked.items()
        }

    def note_answer(self, process: int, answer: CancelledByName) -> None:
        """An API process holds nothing more of what it was asked for."""
        pending = self._pending.get(answer.sequence)
        if pending is not None and pending.asked.pop(process, None) is not None:
            pending.requests += answer.requests

    def lose(self, process: int, ids: Iterable[str]) -> None:
        """A connection is gone, and its requests, which have these ids, are going to end."""
        self._orphans.update(ids)
        self._pending = {number: q for number, q in self._pending.items() if q.requester != process}
        for pending in self._pending.values():
            pending.unreached += pending.asked.pop(process, [])

    def end(self, request_id: str, outcome: Outcome) -> None:
        """A request has ended and holds nothing."""
        self._orphans.discard(request_id)
        self._ended.note(CancelledRequest(request_id, outcome, 0.0))

    def answers(self) -> Iterator[tuple[int, CancelledByName]]:
        """The answers that are complete, each once, with the connections that they are for."""
        for number, pending in tuple(self._pending.items()):
            if not pending.asked and self._orphans.isdisjoint(pending.unreached):
                del self._pending[number]
                remembered = [ended for i in pending.unreached if (ended := self._ended.get(i)) is not None]
                requests = pending.requests + remembered
                yield (
                    pending.requester,
                    CancelledByName(sequence=pending.sequence, requests=requests, unreached=pending.unreached),
                )
