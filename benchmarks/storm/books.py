"""Two sets of books: what the server says became of each request, and what its client saw. They must be the same.

Every work request of the storm carries a label (`X-Request-Id`), and the server writes a line with label and outcome
when a request is over. A client that was answered knows the outcome; one that left allows several, and may not even
have been heard. A label belongs to one request, or to all of a group (duplicates): then its lines are matched when all
of the group are over.

Owner: the clients open and close entries, the reader of the log adds lines; both on one event loop. An entry is open
(its request runs), then closed (what its client saw), then matched with a line and forgotten; so the books stay small.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tenure.outcomes import Outcome

FAULTS_KEPT = 50
_ERRORS = {
    "queue_full": Outcome.QUEUE_FULL,
    "engine_unavailable": Outcome.UNAVAILABLE,
    "deadline_exceeded": Outcome.DEADLINE,
    "aborted": Outcome.ABORTED,
    "kv_lost": Outcome.KV_LOST,
    "internal_error": Outcome.ENGINE_ERROR,
}


def outcome_of(status: int, code: str) -> Outcome:
    """The outcome that an answer stands for; `code` is its error's, empty without one."""
    return Outcome.OK if status < 400 and not code else _ERRORS.get(code, Outcome.INVALID)


@dataclass(frozen=True)
class Sight:
    """What a client saw of a request. `unheard`: the server may not know of it at all."""

    what: str
    """In words, for the table."""
    allowed: frozenset[Outcome]
    unheard: bool = False

    @property
    def known(self) -> bool:
        """Whether the client knows what became of its request."""
        return len(self.allowed) == 1 and not self.unheard


@dataclass
class _Group:
    """All requests with one label."""

    open: int = 0
    closed: list[Sight] = field(default_factory=list)
    lines: list[Outcome] = field(default_factory=list)


class Books:
    """See the module's text."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.fault_count = 0
        self.seen: Counter[str] = Counter()
        """Requests by what their clients saw."""
        self.told: Counter[Outcome] = Counter()
        """Requests whose clients know the outcome, by outcome."""
        self.logged: Counter[Outcome] = Counter()
        """Requests by the outcome in the server's log."""
        self._groups: dict[str, _Group] = {}

    def fault(self, text: str) -> None:
        """Something is not as it must be."""
        self.fault_count += 1
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(text)

    def open(self, label: str) -> None:
        """A work request is about to be sent."""
        self._groups.setdefault(label, _Group()).open += 1

    def close(self, label: str, sight: Sight) -> None:
        """Its client is done with it."""
        self.seen[sight.what] += 1
        if sight.known:
            self.told.update(sight.allowed)
        group = self._groups[label]
        group.open -= 1
        group.closed.append(sight)
        self._match(label, group)

    def line(self, label: str, outcome: Outcome) -> None:
        """The server says that a request with this label is over."""
        self.logged[outcome] += 1
        group = self._groups.get(label)
        if group is None:
            self.fault(f"the log has a request that nobody made: {label!r}, {outcome}")
            return
        group.lines.append(outcome)
        self._match(label, group)

    def _match(self, label: str, group: _Group) -> None:
        """Strike out what agrees; those that were certainly heard come first."""
        if group.open or len(group.lines) < sum(not sight.unheard for sight in group.closed):
            return
        sights = sorted(group.closed, key=lambda sight: sight.unheard)
        pairs: dict[int, int] = {}
        for number in range(len(sights)):
            _pair(number, sights, group.lines, pairs, set())
        group.lines = [line for place, line in enumerate(group.lines) if place not in pairs]
        group.closed = [sight for number, sight in enumerate(sights) if number not in pairs.values()]
        if not group.closed and not group.lines:
            del self._groups[label]

    def unsettled(self, lost: int) -> list[str]:
        """At rest: what was not struck out. `lost` requests ended with an API process, without a line."""
        wrong, unlogged = [], []
        for label, group in self._groups.items():
            saw = "; ".join(sight.what for sight in group.closed) or "nothing"
            if group.open:
                wrong.append(f"{label!r} is still open")
            if group.lines:
                wrong.append(f"{label!r}: the server counts {', '.join(group.lines)}; clients saw: {saw}")
            elif not all(sight.unheard for sight in group.closed):
                unlogged.append(f"{label!r}: no line of the server's; clients saw: {saw}")
        return wrong + unlogged[lost:]


def _pair(
    number: int, sights: Sequence[Sight], lines: Sequence[Outcome], pairs: dict[int, int], tried: set[int]
) -> bool:
    """Find a line for a sight, moving others where need be (Kuhn's algorithm). `pairs` has a line's sight."""
    for place, line in enumerate(lines):
        if place not in tried and line in sights[number].allowed:
            tried.add(place)
            if place not in pairs or _pair(pairs[place], sights, lines, pairs, tried):
                pairs[place] = number
                return True
    return False
