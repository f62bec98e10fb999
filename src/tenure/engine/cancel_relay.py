"""Cancels by name on their way through the engine: from the API process that was asked to those that serve them.

An id tells which API process that is, so it alone is asked; for labels all are. For one that is gone the engine
answers: it remembers how requests have ended, and waits for those that still end because their connection is lost. The
engine's I/O thread is the only one that touches this object.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from tenure.outcomes import Outcome
from tenure.process.ended import EndedRequests
from tenure.request_id import process_of
from tenure.wire.messages import CancelByName, CancelledByName, CancelledRequest


@dataclass(slots=True)
class _Question:
    """Asked by connection `asker`. `asked`: the connections that are yet to answer, and the ids that each is to end."""

    asker: int
    sequence: int
    asked: dict[int, list[str]] = field(default_factory=dict)
    unreached: list[str] = field(default_factory=list)
    requests: list[CancelledRequest] = field(default_factory=list)


class CancelRelay:
    """See the module's docstring. Connections and questions have the engine's numbers."""

    def __init__(self) -> None:
        self._questions: dict[int, _Question] = {}
        self._ended = EndedRequests()
        self._orphans: set[str] = set()

    def ask(
        self, number: int, asker: int, names: CancelByName, processes: Mapping[str, int]
    ) -> Mapping[int, CancelByName]:
        """Take a question; returns what to ask of whom. `processes`: other connections by process names."""
        question = self._questions[number] = _Question(asker, names.sequence)
        if names.labels:
            question.asked = {process: [] for process in processes.values()}
        for request_id in names.ids:
            process = processes.get(process_of(request_id))
            ids = question.unreached if process is None else question.asked.setdefault(process, [])
            ids.append(request_id)
        return {
            process: msgspec.structs.replace(names, sequence=number, ids=ids) for process, ids in question.asked.items()
        }

    def hear(self, process: int, answer: CancelledByName) -> None:
        """An API process holds nothing more of what it was asked for."""
        question = self._questions.get(answer.sequence)
        if question is not None and question.asked.pop(process, None) is not None:
            question.requests += answer.requests

    def lose(self, process: int, ids: Iterable[str]) -> None:
        """A connection is gone, and its requests, which have these ids, are going to end."""
        self._orphans.update(ids)
        self._questions = {number: q for number, q in self._questions.items() if q.asker != process}
        for question in self._questions.values():
            question.unreached += question.asked.pop(process, [])

    def end(self, request_id: str, outcome: Outcome) -> None:
        """A request has ended and holds nothing."""
        self._orphans.discard(request_id)
        self._ended.note(CancelledRequest(request_id, outcome, 0.0))

    def answers(self) -> Iterator[tuple[int, CancelledByName]]:
        """The answers that are complete, each once, with the connections that they are for."""
        for number, question in tuple(self._questions.items()):
            if not question.asked and self._orphans.isdisjoint(question.unreached):
                del self._questions[number]
                remembered = [ended for i in question.unreached if (ended := self._ended.get(i)) is not None]
                requests = question.requests + remembered
                yield (
                    question.asker,
                    CancelledByName(sequence=question.sequence, requests=requests, unreached=question.unreached),
                )
