"""Who is called what: the requests of an engine by the names that callers know, the living and those ended lately.

    enter --> live --leave--> ended, remembered until `process.ended.REMEMBERED` others have ended

A question (`CancelByName`) is passed on to all API processes (`Recall`). They end what is open, wherever it is, and
tell what became of the others that they served, whichever engine had them: theirs is the outcome that callers see. What
is in this engine is ended at once here, and timed. Each one's answer comes after all that it has submitted, so the
names are looked up once more then, and no request slips through. The question waits for these answers, though no longer
than `PATIENCE` (a process may have been stopped), and for all requests that it is to end; then it is answered.
The engine's I/O thread is the only one that touches this object.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

import msgspec

from tenure.outcomes import Outcome
from tenure.process.ended import EndedRequests
from tenure.wire.messages import CancelByName, CancelledRequest

PATIENCE = 2.0
"""Seconds that an API process may take to answer a `Recall`."""


_Key = tuple[str, ...]


def _by_id(public_id: str) -> _Key:
    return ("id", public_id)


def _by_label(owner: str, label: str) -> _Key:
    return ("label", owner, label)


class Name(NamedTuple):
    """What a live request is called: its public id, and the label that its owner gave it, if any."""

    public_id: str
    label: str
    owner: str

    @property
    def keys(self) -> tuple[_Key, ...]:
        named = (_by_id(self.public_id),)
        return (*named, _by_label(self.owner, self.label)) if self.label else named


@dataclass(slots=True)
class Question:
    """Asked by `asker` (the number of a connection): what has become of these requests."""

    asker: int
    message: CancelByName
    asked_at: float
    processes: set[int]
    """Connections that have not answered their `Recall` yet."""
    waiting: set[int] = field(default_factory=set)
    """Numbers of requests that have not ended yet."""
    ids: dict[str, None] = field(default_factory=dict)
    """Of all that it is about, in order."""

    @property
    def open(self) -> bool:
        return bool(self.waiting or self.processes)


class Register:
    """See the module's docstring. Requests are matched by the engine's own numbers, names are looked up in them."""

    def __init__(self) -> None:
        self._live: dict[int, Name] = {}
        self._named: dict[_Key, set[int]] = {}
        self._ended = EndedRequests()
        self._ordered_at: dict[int, float] = {}
        self._questions: dict[int, Question] = {}
        self._numbers = count(1)

    def enter(self, number: int, name: Name) -> None:
        """A request has been admitted under this name."""
        self._live[number] = name
        for key in name.keys:
            self._named.setdefault(key, set()).add(number)

    def ask(self, asker: int, message: CancelByName, processes: Iterable[int], now: float) -> tuple[int, set[int]]:
        """Take a question, and keep it until it is answered. `processes` are the connections that it is passed on to.

        Returns its number, for the `Recall`, and the numbers of the live requests that are to be ended for it.
        """
        number = next(self._numbers)
        question = Question(asker, message, now, set(processes), ids=dict.fromkeys(message.ids))
        self._questions[number] = question
        return number, self._choose(question, now)

    def hear(self, process: int, number: int, recalled: Sequence[CancelledRequest], now: float) -> set[int]:
        """An API process has seen these end; returns those that have come in since and are to be ended as well.

        What it says of an outcome counts: it is what the caller was told.
        """
        for request in recalled:
            known = self._ended.get(request.id) or msgspec.structs.replace(request, heard=True)
            self._ended.note(msgspec.structs.replace(known, outcome=request.outcome))
        question = self._questions.get(number)
        if question is None:
            return set()
        question.processes.discard(process)
        question.ids.update(dict.fromkeys(request.id for request in recalled))
        return self._choose(question, now)

    def give_up(self, now: float) -> None:
        """Wait no longer for processes that have had `PATIENCE` to answer."""
        for question in self._questions.values():
            if now - question.asked_at > PATIENCE:
                question.processes.clear()

    def _choose(self, question: Question, now: float) -> set[int]:
        message = question.message
        keys = [_by_id(i) for i in message.ids] + [_by_label(message.owner, label) for label in message.labels]
        chosen = {number for key in keys for number in self._named.get(key, ())} - question.waiting
        for number in chosen:
            self._ordered_at.setdefault(number, now)
        question.ids.update(dict.fromkeys(self._live[number].public_id for number in sorted(chosen)))
        question.waiting |= chosen
        return chosen

    def leave(self, number: int, outcome: Outcome, now: float) -> None:
        """The request has ended and holds nothing."""
        name = self._live.pop(number)
        for key in name.keys:
            self._named[key].remove(number)
            if not self._named[key]:
                del self._named[key]
        seconds = max(0.0, now - self._ordered_at.pop(number, now))
        told = self._ended.get(name.public_id)  # by its API process, which has decided
        self._ended.note(CancelledRequest(name.public_id, told.outcome if told else outcome, seconds))
        for question in self._questions.values():
            question.waiting.discard(number)

    def answers(self) -> Iterable[tuple[Question, Sequence[CancelledRequest]]]:
        """The questions that can be answered now; each is returned once."""
        ready = [number for number, question in self._questions.items() if not question.open]
        questions = [self._questions.pop(number) for number in ready]
        return [(q, [found for i in q.ids if (found := self._ended.get(i)) is not None]) for q in questions]

    def forget(self, process: int) -> None:
        """The connection is lost: nobody waits for its answers any more, and it does not wait for any."""
        self._questions = {number: q for number, q in self._questions.items() if q.asker != process}
        for question in self._questions.values():
            question.processes.discard(process)
