"""The tickets of prompts that were computed here for another engine: who may read their blocks, and for how long.

    offered --claim--> claimed --read--> reading --confirm--> confirmed --free--> done
       |                 |                 |                                      |
       +-----------------+-----------------+--release, lapse, revoke, lose--> ... +

A ticket holds its blocks (`core.handovers`) until the loop has freed them. It is named by a secret of its own, claimed
once, and ends once: `confirmed`, or by one of the ways out. By then nobody reads its blocks with any use: a reader asks
for a confirmation after it has read, and gets one only while the ticket is `reading`. Since blocks are let go of after
that alone, a confirmation proves that no block had another use before. So a peer that is late, stopped or cut off needs
neither be reached nor waited for.

A peer is one connection of another engine; it has claims under numbers of its own. Until it is claimed, a ticket lasts
for `lease` seconds, and from then on for as long after each renewal. `now` is in seconds, on any clock that does not go
back. What does not fit the table is counted, and changes nothing. Runs in the engine's I/O thread.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from tenure.core.ledger import LedgerError

_REMEMBERED = 4096
"""Tickets that have ended, so that late claims are told why."""


class TicketState(StrEnum):
    OFFERED = "offered"
    CLAIMED = "claimed"
    READING = "reading"
    CONFIRMED = "confirmed"
    RELEASED = "released"
    LAPSED = "lapsed"
    REVOKED = "revoked"
    PEER_LOST = "peer_lost"
    DONE = "done"


class TicketEvent(StrEnum):
    CLAIM = "claim"
    READ = "read"
    CONFIRM = "confirm"
    RELEASE = "release"
    LAPSE = "lapse"
    REVOKE = "revoke"
    LOSE = "lose"
    FREE = "free"


_WAYS_OUT = {
    TicketEvent.RELEASE: TicketState.RELEASED,
    TicketEvent.LAPSE: TicketState.LAPSED,
    TicketEvent.REVOKE: TicketState.REVOKED,
}
_LOST = {TicketEvent.LOSE: TicketState.PEER_LOST}
_FREED = {TicketEvent.FREE: TicketState.DONE}
TICKET_TRANSITIONS: Mapping[TicketState, Mapping[TicketEvent, TicketState]] = {
    TicketState.OFFERED: {TicketEvent.CLAIM: TicketState.CLAIMED, **_WAYS_OUT},
    TicketState.CLAIMED: {TicketEvent.READ: TicketState.READING, **_WAYS_OUT, **_LOST},
    TicketState.READING: {TicketEvent.CONFIRM: TicketState.CONFIRMED, **_WAYS_OUT, **_LOST},
    TicketState.CONFIRMED: _FREED,
    TicketState.RELEASED: _FREED,
    TicketState.LAPSED: _FREED,
    TicketState.REVOKED: _FREED,
    TicketState.PEER_LOST: _FREED,
    TicketState.DONE: {},
}
ENDED_TICKETS = frozenset(state for state, following in TICKET_TRANSITIONS.items() if following == _FREED)


@dataclass(slots=True)
class _Ticket:
    number: int
    name: bytes
    due: float
    state: TicketState = TicketState.OFFERED
    claimed_by: tuple[int, int] | None = None
    """The peer, and the number that it gave its claim."""


class Tickets:
    """See the module's docstring."""

    def __init__(self, lease: float) -> None:
        self._lease = lease
        self._tickets: dict[int, _Ticket] = {}  # until they are done
        self._by_name: dict[bytes, _Ticket] = {}  # those that have not ended
        self._by_claim: dict[tuple[int, int], _Ticket] = {}  # the same
        self._ways: dict[bytes, TicketState] = {}  # how the latest ended
        self._to_free: list[int] = []
        self.counts = dict.fromkeys(ENDED_TICKETS, 0)
        """How many have ended so."""
        self.unmatched = 0

    def offer(self, number: int, name: bytes, now: float) -> None:
        """The loop has handed over the blocks of a ticket."""
        if number in self._tickets or name in self._by_name:
            raise LedgerError(f"ticket {number} is offered twice")
        self._tickets[number] = self._by_name[name] = _Ticket(number, name, now + self._lease)

    def claim(self, name: bytes, peer: int, claim: int, now: float) -> int | TicketState | None:
        """The number of the ticket, which is the peer's from now on; else how it ended, or its state; None: unknown."""
        ticket = self._current(self._by_name.get(name), now)
        if ticket is None:
            return self._ways.get(name)
        if ticket.state is not TicketState.OFFERED or (peer, claim) in self._by_claim:
            self.unmatched += 1
            return ticket.state
        self._apply(ticket, TicketEvent.CLAIM)
        ticket.claimed_by, ticket.due = (peer, claim), now + self._lease
        self._by_claim[peer, claim] = ticket
        return ticket.number

    def renew(self, peer: int, claims: Iterable[int], now: float) -> list[int]:
        """Prolong claims of a peer; returns those that it has no longer."""
        gone = []
        for claim in claims:
            ticket = self._current(self._by_claim.get((peer, claim)), now)
            if ticket is None:
                gone.append(claim)
            else:
                ticket.due = now + self._lease
        return gone

    def begin_read(self, peer: int, claim: int, now: float) -> int | None:
        """The number of the ticket whose blocks the peer may read from now on; None: it may not."""
        return self._advance(peer, claim, TicketEvent.READ, now)

    def confirm(self, peer: int, claim: int, now: float) -> bool:
        """Whether all that the peer has read since `begin_read` is what the ticket holds. It ends with that."""
        return self._advance(peer, claim, TicketEvent.CONFIRM, now) is not None

    def release(self, peer: int, claim: int) -> None:
        """The peer needs the ticket no longer."""
        self._end(self._by_claim.get((peer, claim)), TicketEvent.RELEASE)

    def release_unclaimed(self, name: bytes) -> None:
        """Whoever brought the ticket will not claim it. A claim by another is left alone."""
        ticket = self._by_name.get(name)
        if ticket is not None and ticket.state is not TicketState.OFFERED:
            ticket = None
        self._end(ticket, TicketEvent.RELEASE)

    def withdraw(self, number: int) -> None:
        """Nobody can bring the ticket any more."""
        ticket = self._tickets.get(number)
        self._end(ticket if ticket is not None and ticket.state is TicketState.OFFERED else None, TicketEvent.RELEASE)

    def lose(self, peer: int) -> None:
        """The connection to a peer has ended, and so have its claims."""
        for (holder, _), ticket in list(self._by_claim.items()):
            if holder == peer:
                self._end(ticket, TicketEvent.LOSE)

    def revoke_all(self) -> list[tuple[int, int]]:
        """End all tickets; returns the peers and claims that have to be told."""
        return self._end_all(list(self._by_name.values()), TicketEvent.REVOKE)

    def expire(self, now: float) -> list[tuple[int, int]]:
        """End the tickets whose time is up; returns the peers and claims that have to be told."""
        return self._end_all([ticket for ticket in self._by_name.values() if ticket.due <= now], TicketEvent.LAPSE)

    @property
    def next_due(self) -> float | None:
        """When the next ticket lapses unless it is renewed."""
        return min((ticket.due for ticket in self._by_name.values()), default=None)

    def take_ended(self) -> list[int]:
        """The tickets that have ended since the last call: the loop is to let go of their blocks."""
        ended, self._to_free = self._to_free, []
        return ended

    def free(self, number: int) -> None:
        """The loop has let go of the blocks of a ticket that has ended."""
        ticket = self._tickets.get(number)
        if ticket is None or ticket.state not in ENDED_TICKETS:
            raise LedgerError(f"ticket {number} is freed, but has not ended")
        self._apply(ticket, TicketEvent.FREE)
        del self._tickets[number]

    @property
    def open(self) -> dict[TicketState, int]:
        """How many tickets are in each state, those included that have ended and hold blocks still."""
        found = dict.fromkeys(TicketState, 0)
        for ticket in self._tickets.values():
            found[ticket.state] += 1
        return {state: count for state, count in found.items() if count}

    def audit(self) -> None:
        """Raises `LedgerError` naming what does not add up."""
        going_on = {number for number, ticket in self._tickets.items() if ticket.state not in ENDED_TICKETS}
        if going_on != {ticket.number for ticket in self._by_name.values()}:
            raise LedgerError("the tickets that have not ended and their names disagree")
        claimed = {ticket.number: ticket.claimed_by for ticket in self._by_claim.values()}
        for number in going_on:
            ticket = self._tickets[number]
            is_claimed = ticket.state is not TicketState.OFFERED
            if is_claimed != (number in claimed) or ticket.claimed_by != claimed.get(number):
                raise LedgerError(f"ticket {number} is {ticket.state}, and claimed by {ticket.claimed_by}")
        if not set(claimed) <= going_on:
            raise LedgerError("a ticket that has ended is claimed")

    def _current(self, ticket: _Ticket | None, now: float) -> _Ticket | None:
        """The ticket, unless its time is up: then it has lapsed, whoever looks first."""
        if ticket is None:
            self.unmatched += 1
        elif ticket.due <= now:
            self._end(ticket, TicketEvent.LAPSE)
            return None
        return ticket

    def _advance(self, peer: int, claim: int, event: TicketEvent, now: float) -> int | None:
        ticket = self._current(self._by_claim.get((peer, claim)), now)
        if ticket is None:
            return None
        if event not in TICKET_TRANSITIONS[ticket.state]:
            self.unmatched += 1
            return None
        if event is TicketEvent.CONFIRM:
            self._end(ticket, event)
        else:
            self._apply(ticket, event)
        return ticket.number

    def _end_all(self, tickets: Iterable[_Ticket], event: TicketEvent) -> list[tuple[int, int]]:
        told = []
        for ticket in tickets:
            if ticket.claimed_by is not None:
                told.append(ticket.claimed_by)
            self._end(ticket, event)
        return told

    def _end(self, ticket: _Ticket | None, event: TicketEvent) -> None:
        if ticket is None:
            self.unmatched += 1
            return
        self._apply(ticket, event)
        del self._by_name[ticket.name]
        if ticket.claimed_by is not None:
            del self._by_claim[ticket.claimed_by]
        self._to_free.append(ticket.number)
        self.counts[ticket.state] += 1
        self._ways[ticket.name] = ticket.state
        if len(self._ways) > _REMEMBERED:
            del self._ways[next(iter(self._ways))]

    def _apply(self, ticket: _Ticket, event: TicketEvent) -> None:
        following = TICKET_TRANSITIONS[ticket.state].get(event)
        if following is None:
            raise LedgerError(f"{event} is not possible for a ticket that is {ticket.state}")
        ticket.state = following
