"""Two sets of books: what the server says became of each request, and what its client saw. They must be the same.

Every work request of the storm carries a label (`X-Request-Id`), and the server writes a line with label and outcome
when a request is over. A client that was answered knows the outcome; one that left allows several, and may not even
have been heard. A label belongs to one request, or to all of a group (duplicates, and all without a label).

Owner: the clients open and close entries, the reader of the log adds lines; both on one event loop. A group is
forgotten once it is settled, so the books stay small; what is not by the end is assigned then.
"""

from collections import Counter, defaultdict
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
    """What a client saw of a request. `ignore_progress`: the server may not know of it at all."""

    what: str
    """In words, for the table."""
    allowed: frozenset[Outcome]
    ignore_progress: bool = False

    @property
    def known(self) -> bool:
        """Whether the client knows what became of its request."""
        return len(self.allowed) == 1 and not self.ignore_progress


@dataclass
class _Group:
    """All requests with one label."""

    open: int = 0
    balance: Counter[Outcome] = field(default_factory=Counter)
    """By outcome: the lines of the log, less the requests whose clients know that outcome."""
    unclear: list[Sight] = field(default_factory=list)
    """Of the requests whose clients do not know."""

    @property
    def settled(self) -> bool:
        """Nothing is open, and every line is in and agrees with what was seen.

        No line is given to an unclear request before all are in: it may be another's, which allows nothing else.
        """
        return (
            not self.open
            and min(self.balance.values(), default=0) >= 0
            and self.balance.total() == len(self.unclear)
            and not self.unassigned()[0].total()
        )

    def unassigned(self) -> tuple[Counter[Outcome], list[Sight]]:
        """The lines and the unclear sights that are left over when as many as possible agree; the heard come first."""
        room, taken = +self.balance, defaultdict[Outcome, list[Sight]](list)
        sights = sorted(self.unclear, key=lambda sight: sight.ignore_progress)
        left = [sight for sight in sights if not _assign(sight, room, taken, set())]
        return +room, left


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
        group = self._groups[label]
        group.open -= 1
        if sight.known:
            self.told.update(sight.allowed)
            group.balance.subtract(sight.allowed)
        else:
            group.unclear.append(sight)
        self._forget_settled(label, group)

    def line(self, label: str, outcome: Outcome) -> None:
        """The server says that a request with this label is over."""
        self.logged[outcome] += 1
        group = self._groups.get(label)
        if group is None:
            self.fault(f"the log has a request that nobody made: {label!r}, {outcome}")
            return
        group.balance[outcome] += 1
        self._forget_settled(label, group)

    def _forget_settled(self, label: str, group: _Group) -> None:
        if group.settled:
            del self._groups[label]

    def unsettled(self, lost: int) -> list[str]:
        """At rest: what does not agree. `lost` requests ended with an API process, without a line."""
        wrong, unlogged = [], []
        for label, group in self._groups.items():
            if group.open:
                wrong.append(f"{label!r} is still open")
            lines, sights = group.unassigned()
            if lines:
                counted, saw = ", ".join(lines.elements()), "; ".join(sight.what for sight in sights) or "nothing"
                wrong.append(f"{label!r}: the server counts {counted}; clients saw: {saw}")
            seen = [*(-group.balance).elements(), *(sight.what for sight in sights if not sight.ignore_progress)]
            unlogged += [f"{label!r}: no line of the server's; its client saw: {what}" for what in seen]
        return wrong + unlogged[lost:]


def _assign(sight: Sight, room: Counter[Outcome], taken: dict[Outcome, list[Sight]], tried: set[Outcome]) -> bool:
    """Give a sight a line from `room`, moving others of `taken` where need be (Kuhn's algorithm, over outcomes)."""
    for outcome in sight.allowed - tried:
        tried.add(outcome)
        if room[outcome]:
            room[outcome] -= 1
        elif mover := next((other for other in taken[outcome] if _assign(other, room, taken, tried)), None):
            taken[outcome].remove(mover)
        else:
            continue
        taken[outcome].append(sight)
        return True
    return False
