"""Who is called what: the requests of an engine by the names that callers know, the living and those ended lately.

    enter --> live --leave--> ended, remembered until `REMEMBERED` others have ended

A question (`CancelByName`) waits for all requests that it is to end; it is answered when the last of them has left.
The engine's I/O thread is the only one that touches this object.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tenure.outcomes import Outcome
from tenure.wire.messages import CancelByName, CancelledRequest

REMEMBERED = 10_000


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


class Question(NamedTuple):
    """Asked by `asker` (the number of a connection): what has become of these requests."""

    asker: int
    sequence: int
    ids: tuple[str, ...]
    waiting: set[int]
    """Numbers of those that have not ended yet."""


class Register:
    """See the module's docstring. Requests are matched by the engine's own numbers, names are looked up in them."""

    def __init__(self) -> None:
        self._live: dict[int, Name] = {}
        self._named: dict[_Key, set[int]] = {}
        self._ended: OrderedDict[str, CancelledRequest] = OrderedDict()
        self._ordered_at: dict[int, float] = {}
        self._questions: list[Question] = []

    def enter(self, number: int, name: Name) -> None:
        """A request has been admitted under this name."""
        self._live[number] = name
        for key in name.keys:
            self._named.setdefault(key, set()).add(number)

    def ask(self, asker: int, message: CancelByName, now: float) -> set[int]:
        """Take a question, and keep it until it is answered. Returns the numbers of the live requests it is about."""
        keys = [_by_id(i) for i in message.ids] + [_by_label(message.owner, label) for label in message.labels]
        chosen = {number for key in keys for number in self._named.get(key, ())}
        for number in chosen:
            self._ordered_at.setdefault(number, now)
        ids = dict.fromkeys((*message.ids, *(self._live[number].public_id for number in sorted(chosen))))
        self._questions.append(Question(asker, message.sequence, tuple(ids), set(chosen)))
        return chosen

    def leave(self, number: int, outcome: Outcome, now: float) -> None:
        """The request has ended and holds nothing."""
        name = self._live.pop(number)
        for key in name.keys:
            self._named[key].remove(number)
            if not self._named[key]:
                del self._named[key]
        seconds = max(0.0, now - self._ordered_at.pop(number, now))
        self._ended[name.public_id] = CancelledRequest(name.public_id, outcome, seconds)
        if len(self._ended) > REMEMBERED:
            self._ended.popitem(last=False)
        for question in self._questions:
            question.waiting.discard(number)

    def answers(self) -> Iterable[tuple[Question, Sequence[CancelledRequest]]]:
        """The questions that can be answered now; each is returned once."""
        ready = [question for question in self._questions if not question.waiting]
        self._questions = [question for question in self._questions if question.waiting]
        return [(question, [self._ended[i] for i in question.ids if i in self._ended]) for question in ready]

    def forget_asker(self, asker: int) -> None:
        """Nobody waits for its answers any more."""
        self._questions = [question for question in self._questions if question.asker != asker]
