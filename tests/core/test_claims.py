"""Tickets and claims: each step and each way out, then both sides together over a network that does its worst."""

import random
from collections import deque
from dataclasses import dataclass, field

import pytest

from tenure.core.claim_messages import (
    BeginRead,
    Claim,
    Confirm,
    Confirmed,
    Granted,
    Refused,
    Release,
    ToOwner,
    ToReader,
)
from tenure.core.claims import Claims, News, Told
from tenure.core.ledger import LedgerError
from tenure.core.tickets import ENDED_TICKETS, TICKET_TRANSITIONS, Tickets, TicketState

LEASE, PATIENCE = 30.0, 5.0
PEER, OTHER = 1, 2


def offered() -> Tickets:
    tickets = Tickets(LEASE)
    tickets.offer(7, b"seven", 0.0)
    return tickets


def claimed() -> Tickets:
    tickets = offered()
    assert tickets.claim(b"seven", PEER, 1, 0.0) == 7
    return tickets


# tickets


def test_a_ticket_is_claimed_read_and_confirmed_once() -> None:
    tickets = claimed()
    assert tickets.begin_read(PEER, 1, 1.0) == 7
    assert tickets.take_ended() == []
    assert tickets.confirm(PEER, 1, 2.0)
    assert tickets.take_ended() == [7]
    assert not tickets.confirm(PEER, 1, 2.0)
    assert tickets.open == {TicketState.CONFIRMED: 1}
    tickets.free(7)
    assert (tickets.open, tickets.take_ended(), tickets.counts[TicketState.CONFIRMED]) == ({}, [], 1)
    assert tickets.claim(b"seven", PEER, 2, 3.0) is TicketState.CONFIRMED


def test_what_was_not_read_under_its_ticket_is_not_confirmed() -> None:
    tickets = claimed()
    assert not tickets.confirm(PEER, 1, 1.0)
    assert tickets.begin_read(OTHER, 1, 1.0) is None
    assert tickets.begin_read(PEER, 2, 1.0) is None
    assert tickets.open == {TicketState.CLAIMED: 1}
    assert tickets.unmatched == 3


def test_a_ticket_that_nobody_claims_lapses() -> None:
    tickets = offered()
    assert tickets.next_due == LEASE
    assert tickets.expire(LEASE - 0.1) == []
    assert tickets.claim(b"seven", PEER, 1, LEASE) is TicketState.LAPSED
    assert tickets.take_ended() == [7]


def test_renewals_prolong_a_claim_and_name_what_is_gone() -> None:
    tickets = claimed()
    assert tickets.renew(PEER, [1, 9], LEASE - 1) == [9]
    assert tickets.expire(LEASE) == []
    assert tickets.begin_read(PEER, 1, 2 * LEASE - 2) == 7
    assert tickets.expire(2 * LEASE - 1) == [(PEER, 1)]
    assert not tickets.confirm(PEER, 1, 2 * LEASE)
    assert tickets.counts[TicketState.LAPSED] == 1


def test_a_read_that_outlasts_its_lease_is_not_confirmed_whoever_looks_first() -> None:
    tickets = claimed()
    assert tickets.begin_read(PEER, 1, 0.0) == 7
    assert not tickets.confirm(PEER, 1, LEASE)
    assert tickets.take_ended() == [7]


def test_a_second_claim_changes_nothing_for_the_first() -> None:
    tickets = claimed()
    assert tickets.claim(b"seven", OTHER, 1, 0.0) is TicketState.CLAIMED
    tickets.release_unclaimed(b"seven")
    tickets.lose(OTHER)
    assert tickets.begin_read(PEER, 1, 0.0) == 7


def test_whoever_brought_a_ticket_lets_go_of_it_before_it_is_claimed() -> None:
    tickets = offered()
    tickets.release_unclaimed(b"unknown")
    assert tickets.take_ended() == []
    tickets.release_unclaimed(b"seven")
    assert tickets.take_ended() == [7]
    assert tickets.claim(b"unknown", PEER, 1, 0.0) is None


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("way", ["release", "lose", "revoke"])
def test_every_way_out_lets_go_at_once_and_once(way: str, *, reads: bool) -> None:
    tickets = claimed()
    if reads:
        tickets.begin_read(PEER, 1, 0.0)
    for _ in range(2):
        match way:
            case "release":
                tickets.release(PEER, 1)
            case "lose":
                tickets.lose(PEER)
            case "revoke":
                tickets.revoke_all()
        tickets.audit()
    assert tickets.take_ended() == [7]
    assert not tickets.confirm(PEER, 1, 0.0)
    assert sum(tickets.counts.values()) == 1


def test_what_is_freed_has_ended() -> None:
    tickets = claimed()
    with pytest.raises(LedgerError):
        tickets.free(7)
    with pytest.raises(LedgerError):
        tickets.offer(7, b"again", 0.0)
    tickets.release(PEER, 1)
    tickets.free(7)
    with pytest.raises(LedgerError):
        tickets.free(7)


def test_the_latest_ways_are_remembered() -> None:
    tickets = Tickets(LEASE)
    for number in range(5000):
        tickets.offer(number, str(number).encode(), 0.0)
    tickets.revoke_all()
    assert tickets.claim(b"4999", PEER, 1, 0.0) is TicketState.REVOKED
    assert tickets.claim(b"0", PEER, 1, 0.0) is None


def test_from_every_state_an_end_is_reached() -> None:
    for state, following in TICKET_TRANSITIONS.items():
        assert following or state is TicketState.DONE
        assert state in ENDED_TICKETS or state is TicketState.DONE or len(following) >= 4


# claims


def granted(claims: Claims) -> int:
    number = claims.open(PEER, b"seven", 0.0)
    claims.hear(PEER, Granted(claim=number, block_size=16))
    assert claims.take_messages() == [(PEER, Claim(claim=number, ticket=b"seven"))]
    assert claims.take_news() == [Told(number, News.GRANTED)]
    return number


def test_a_claim_is_granted_read_and_confirmed() -> None:
    claims = Claims(PATIENCE)
    number = granted(claims)
    assert claims.renewals() == {PEER: [number]}
    assert claims.begin_read(number)
    claims.end_read(number, 1.0, complete=True)
    assert claims.take_messages() == [(PEER, BeginRead(claim=number)), (PEER, Confirm(claim=number))]
    claims.hear(PEER, Confirmed(claim=number, valid=True))
    assert claims.take_news() == [Told(number, News.CONFIRMED)]
    claims.release(number)
    assert (claims.open_claims, claims.take_messages(), claims.renewals()) == (0, [], {})


def test_a_peer_that_does_not_answer_is_told_and_not_waited_for() -> None:
    claims = Claims(PATIENCE)
    number = claims.open(PEER, b"seven", 0.0)
    assert claims.next_due == PATIENCE
    claims.expire(PATIENCE)
    claims.hear(PEER, Granted(claim=number, block_size=16))
    assert claims.take_messages()[1:] == [(PEER, Release(claim=number))]
    assert claims.take_news() == [Told(number, News.REFUSED)]
    assert (claims.next_due, claims.open_claims) == (None, 0)


def test_a_claim_that_ends_before_its_read_began_is_refused_and_its_read_must_not_begin() -> None:
    claims = Claims(PATIENCE)
    number = granted(claims)
    claims.hear(PEER, Refused(claim=number, reason="revoked"))
    assert not claims.begin_read(number)
    assert claims.take_news() == [Told(number, News.REFUSED)]


@pytest.mark.parametrize("way", ["refused", "lost", "invalid", "incomplete", "late"])
def test_a_read_that_comes_to_nothing_is_told_once(way: str) -> None:
    claims = Claims(PATIENCE)
    number = granted(claims)
    claims.begin_read(number)
    if way == "incomplete":
        claims.end_read(number, 0.0, complete=False)
    else:
        claims.end_read(number, 0.0, complete=True)
    claims.take_messages()
    for _ in range(2):
        match way:
            case "refused":
                claims.hear(PEER, Refused(claim=number, reason="lapsed"))
            case "lost":
                claims.lose(PEER)
            case "invalid":
                claims.hear(PEER, Confirmed(claim=number, valid=False))
            case "late":
                claims.expire(PATIENCE)
    assert claims.take_news() == [Told(number, News.NOT_CONFIRMED)]
    assert claims.take_messages() == ([(PEER, Release(claim=number))] if way == "late" else [])


def test_a_peer_has_no_say_in_the_claims_of_another() -> None:
    claims = Claims(PATIENCE)
    number = claims.open(PEER, b"seven", 0.0)
    claims.hear(OTHER, Granted(claim=number, block_size=16))
    claims.lose(OTHER)
    assert (claims.take_news(), claims.open_claims, claims.unmatched) == ([], 1, 1)


# both sides


@dataclass
class Session:
    """A connection between the two, as long as each side believes in it."""

    number: int
    to_owner: deque[ToOwner | list[int]] = field(default_factory=deque)
    to_reader: deque[ToReader] = field(default_factory=deque)
    owner_knows: bool = True
    reader_knows: bool = True


class World:
    """An owner of tickets and a reader of them; blocks have contents, which change as soon as others may use them."""

    def __init__(self, seed: int, trouble: float = 0.1) -> None:
        self.random = random.Random(seed)
        self.trouble = trouble
        self.now = 0.0
        self.tickets, self.claims = Tickets(LEASE), Claims(PATIENCE)
        self.contents: dict[int, str] = {}
        self.sessions = [Session(1)]
        self.offers: list[int] = []
        self.names: dict[int, bytes] = {}
        self.of_claim: dict[int, int] = {}
        """The ticket of each claim."""
        self.copies: dict[int, str | None] = {}
        """What each claim has read."""
        self.granted: list[int] = []
        self.reading: list[int] = []
        self.told: dict[int, list[News]] = {}
        self.freeing: list[int] = []
        self.freed: set[int] = set()
        self.confirmed: list[int] = []

    @property
    def session(self) -> Session:
        return self.sessions[-1]

    # what may happen

    def offer(self) -> None:
        number = len(self.offers) + 1
        self.offers.append(number)
        self.contents[number], self.names[number] = f"prompt {number}", b"ticket %d" % number
        self.tickets.offer(number, self.names[number], self.now)

    def claim(self) -> None:
        """Some tickets are claimed twice, and some never."""
        if self.offers:
            ticket = self.random.choice(self.offers[-2:])
            claim = self.claims.open(self.session.number, self.names[ticket], self.now)
            self.of_claim[claim], self.told[claim] = ticket, []

    def begin_read(self) -> None:
        if self.granted:
            claim = self.granted.pop(0)
            if self.claims.begin_read(claim):
                self.reading.append(claim)

    def copy(self) -> None:
        """Bytes move whenever they like, also long after somebody has lost interest."""
        if self.reading:
            claim = self.random.choice(self.reading)
            content = self.contents[self.of_claim[claim]]
            before = self.copies.setdefault(claim, content)
            self.copies[claim] = content if before == content else None

    def end_read(self) -> None:
        if self.reading:
            claim = self.reading.pop(self.random.randrange(len(self.reading)))
            self.claims.end_read(claim, self.now, complete=claim in self.copies and self.random.random() < 0.9)

    def release(self) -> None:
        if self.of_claim:
            self.claims.release(self.random.choice(list(self.of_claim)[-4:]))

    def release_unclaimed(self) -> None:
        if self.offers:
            self.tickets.release_unclaimed(self.names[self.random.choice(self.offers)])

    def free(self) -> None:
        """The loop of the owner: from now on others write to the blocks."""
        if self.freeing:
            number = self.freeing.pop(0)
            self.tickets.free(number)
            assert number not in self.freed
            self.freed.add(number)
            self.contents[number] = "of another"

    def pass_time(self) -> None:
        self.now += self.random.choice((0.1, 1.0, PATIENCE, LEASE / 2))

    def expire(self) -> None:
        self._tell(self.tickets.expire(self.now), "lapsed")
        self.claims.expire(self.now)

    def revoke(self) -> None:
        self._tell(self.tickets.revoke_all(), "revoked")

    def renew(self) -> None:
        for peer, claims in self.claims.renewals().items():
            self._at(peer).to_owner.append(claims)

    def hear_owner(self) -> None:
        """The owner hears; what was sent over a connection that it believes in no longer is lost."""
        session = self.random.choice(self.sessions[-2:])
        if session.to_owner and session.owner_knows:
            self._owner_hears(session, session.to_owner.popleft())

    def hear_reader(self) -> None:
        session = self.random.choice(self.sessions[-2:])
        if session.to_reader and session.reader_knows:
            self.claims.hear(session.number, session.to_reader.popleft())

    def cut(self) -> None:
        """One side notices first; whatever is on its way may arrive or not."""
        if self.random.random() < 0.5:
            self._owner_loses(self.session)
        else:
            self._reader_loses(self.session)
        self.sessions.append(Session(self.session.number + 1))

    def notice(self) -> None:
        for session in self.sessions[:-1]:
            self._owner_loses(session)
            self._reader_loses(session)

    def disturb(self) -> None:
        """No transport does this; nothing may come of it all the same."""
        for queue in (self.session.to_owner, self.session.to_reader):
            if len(queue) > 1:
                match self.random.randrange(3):
                    case 0:
                        queue.append(queue[0])  # twice, and late
                    case 1:
                        queue.rotate(1)
                    case 2:
                        queue.popleft()

    # how it is done

    def _owner_hears(self, session: Session, message: ToOwner | list[int]) -> None:
        peer, now = session.number, self.now
        match message:
            case list():
                gone = self.tickets.renew(peer, message, now)
                session.to_reader += [Refused(claim=claim, reason="gone") for claim in gone]
            case Claim(claim=claim, ticket=name):
                found = self.tickets.claim(name, peer, claim, now)
                granted = isinstance(found, int)
                session.to_reader.append(
                    Granted(claim=claim, block_size=16) if granted else Refused(claim=claim, reason=str(found))
                )
            case BeginRead(claim=claim):
                if self.tickets.begin_read(peer, claim, now) is None:
                    session.to_reader.append(Refused(claim=claim, reason="gone"))
            case Confirm(claim=claim):
                session.to_reader.append(Confirmed(claim=claim, valid=self.tickets.confirm(peer, claim, now)))
            case Release(claim=claim):
                self.tickets.release(peer, claim)

    def _tell(self, ended: list[tuple[int, int]], reason: str) -> None:
        for peer, claim in ended:
            self._at(peer).to_reader.append(Refused(claim=claim, reason=reason))

    def _at(self, peer: int) -> Session:
        return self.sessions[peer - 1]

    def _owner_loses(self, session: Session) -> None:
        if session.owner_knows:
            session.owner_knows = False
            self.tickets.lose(session.number)

    def _reader_loses(self, session: Session) -> None:
        if session.reader_knows:
            session.reader_knows = False
            self.claims.lose(session.number)

    def settle(self) -> None:
        """After each event."""
        self.tickets.audit()
        self.freeing += self.tickets.take_ended()
        for peer, message in self.claims.take_messages():
            self._at(peer).to_owner.append(message)
        for claim, news in self.claims.take_news():
            self.told[claim].append(news)
            if news is News.GRANTED:
                self.granted.append(claim)
            elif news is News.CONFIRMED:
                ticket = self.of_claim[claim]
                assert self.copies[claim] == f"prompt {ticket}", "other bytes were confirmed"
                self.confirmed.append(ticket)

    def run(self, events: int, release_at: int | None = None) -> None:
        likely = [self.offer, self.claim, self.begin_read, self.copy, self.end_read, self.free, self.renew]
        network = [self.hear_owner, self.hear_reader] * 4
        unlikely = [self.release, self.release_unclaimed, self.pass_time, self.expire, self.revoke, self.cut]
        for number in range(events):
            if number == release_at:
                self.release()
                self.settle()
            rare = self.random.random() < self.trouble
            self.random.choice([*unlikely, self.notice, self.disturb] if rare else [*likely, *network])()
            self.settle()

    def come_to_rest(self) -> None:
        """Both engines live on, and nobody asks for anything any more."""
        for claim in self.of_claim:
            self.claims.release(claim)
        for _ in range(3):
            self.settle()
            while any(session.to_owner or session.to_reader for session in self.sessions if session.owner_knows):
                for session in self.sessions:
                    while session.to_owner and session.owner_knows:
                        self._owner_hears(session, session.to_owner.popleft())
                    session.to_reader.clear()
            self.now += LEASE
            self.expire()
            self.settle()
            while self.freeing:
                self.free()

    def check_rest(self) -> None:
        assert (self.tickets.open, self.claims.open_claims, self.tickets.next_due) == ({}, 0, None)
        assert self.freed == set(self.offers)
        assert len(set(self.confirmed)) == len(self.confirmed), "one ticket was confirmed twice"
        for news in self.told.values():
            assert news in (
                [],
                *([News.GRANTED, *end] for end in ([], [News.REFUSED], [News.CONFIRMED], [News.NOT_CONFIRMED])),
                [News.REFUSED],
            )


@pytest.mark.parametrize("trouble", [0.01, 0.03, 0.1, 0.3])
def test_nothing_is_stranded_and_nothing_wrong_is_confirmed(trouble: float) -> None:
    confirmed = 0
    for seed in range(100):
        world = World(seed, trouble)
        world.run(200)
        world.come_to_rest()
        world.check_rest()
        confirmed += len(world.confirmed)
    assert confirmed > 20 or trouble > 0.05  # a storm that leaves some in peace


def test_a_release_at_every_event() -> None:
    for moment in range(120):
        world = World(moment % 7)
        world.run(120, release_at=moment)
        world.come_to_rest()
        world.check_rest()


def test_blocks_that_are_used_again_while_they_are_read_are_not_confirmed() -> None:
    """The fence: the owner frees on purpose what is being read."""
    world = World(0)
    world.offer()
    world.claim()
    world.settle()
    world.hear_owner()
    world.hear_reader()
    world.settle()
    world.begin_read()
    world.settle()
    world.hear_owner()
    world.copy()
    world.revoke()
    world.session.to_reader.clear()  # nobody tells the reader
    world.settle()
    world.free()
    world.copy()
    world.claims.end_read(1, world.now, complete=True)
    world.settle()
    while world.session.to_owner or world.session.to_reader:
        world.hear_owner()
        world.hear_reader()
        world.settle()
    assert (world.told[1], world.confirmed) == ([News.GRANTED, News.NOT_CONFIRMED], [])
