"""The claims on prompts that other engines have computed: from a ticket that arrives to blocks that are confirmed.

    claiming --grant--> granted --read--> reading --end_read--> confirming --settle--> (over: confirmed, or not)
        |                  |                 |                      |
        +--refuse----------+-----------------+--release, lose, expire, revoke--> (over)

A claim is open as long as the other engine may hold blocks for it, and ends once. Whatever ends it here before the
other engine has ended it, that engine is told so: by a `Release` behind all that was sent to it before, or by the loss
of the connection. The fetch of a claim (`core.fetches`) is told each of these once:

- before its read began, `GRANTED`, and `REFUSED` if it cannot begin (the loop may have begun meanwhile; then
  `begin_read` says no, and the fetch ends as not confirmed);
- after, `CONFIRMED` or `NOT_CONFIRMED`, unless whoever holds the claim has released it.

A peer is one connection to another engine. Questions that it does not answer within `patience` seconds end the claim.
`now` is in seconds, on any clock that does not go back. Runs in the engine's I/O thread.
"""

from dataclasses import dataclass
from enum import StrEnum
from itertools import count
from typing import NamedTuple

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


class ClaimState(StrEnum):
    CLAIMING = "claiming"
    GRANTED = "granted"
    READING = "reading"
    CONFIRMING = "confirming"


class News(StrEnum):
    """What the fetch of a claim is told."""

    GRANTED = "granted"
    REFUSED = "refused"
    CONFIRMED = "confirmed"
    NOT_CONFIRMED = "not_confirmed"


class Told(NamedTuple):
    claim: int
    news: News


_ASKED = (ClaimState.CLAIMING, ClaimState.CONFIRMING)


@dataclass(slots=True)
class _Claim:
    number: int
    peer: int
    due: float
    state: ClaimState = ClaimState.CLAIMING


class Claims:
    """See the module's docstring. What is to be sent and told piles up until `take_messages` and `take_news`."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._claims: dict[int, _Claim] = {}
        self._numbers = count(1)
        self._messages: list[tuple[int, ToOwner]] = []
        self._news: list[Told] = []
        self.unmatched = 0

    def open(self, peer: int, ticket: bytes, now: float) -> int:
        """Claim a ticket of a peer; returns the number of the claim. Whoever has it calls `release` when done."""
        number = next(self._numbers)
        self._claims[number] = _Claim(number, peer, now + self._patience)
        self._messages.append((peer, Claim(claim=number, ticket=ticket)))
        return number

    def begin_read(self, number: int) -> bool:
        """The fetch of a granted claim is about to read; False: it must not, and is not confirmed."""
        claim = self._claims.get(number)
        if claim is None or claim.state is not ClaimState.GRANTED:
            self.unmatched += 1
            return False
        claim.state = ClaimState.READING
        self._messages.append((claim.peer, BeginRead(claim=number)))
        return True

    def end_read(self, number: int, now: float, *, complete: bool) -> None:
        """All blocks of a claim were read, or not all can be."""
        claim = self._claims.get(number)
        if claim is None or claim.state is not ClaimState.READING:
            self.unmatched += 1
        elif not complete:
            self._end(claim, tell_peer=True)
        else:
            claim.state, claim.due = ClaimState.CONFIRMING, now + self._patience
            self._messages.append((claim.peer, Confirm(claim=number)))

    def release(self, number: int) -> None:
        """Whoever has the claim needs it no longer. One that is over is left as it is."""
        claim = self._claims.pop(number, None)
        if claim is not None:
            self._messages.append((claim.peer, Release(claim=number)))

    def hear(self, peer: int, message: ToReader) -> None:
        """A message of a peer. One that fits no claim of it, or not its state, is counted and otherwise ignored."""
        claim = self._claims.get(message.claim)
        if claim is None or claim.peer != peer:
            self.unmatched += 1
            return
        match message:
            case Granted() if claim.state is ClaimState.CLAIMING:
                claim.state = ClaimState.GRANTED
                self._news.append(Told(claim.number, News.GRANTED))
            case Refused():
                self._end(claim, tell_peer=False)
            case Confirmed(valid=valid) if claim.state is ClaimState.CONFIRMING:
                del self._claims[claim.number]
                self._news.append(Told(claim.number, News.CONFIRMED if valid else News.NOT_CONFIRMED))
            case _:
                self.unmatched += 1

    def lose(self, peer: int) -> None:
        """The connection to a peer has ended, and what it held for us with it."""
        for claim in list(self._claims.values()):
            if claim.peer == peer:
                self._end(claim, tell_peer=False)

    def expire(self, now: float) -> None:
        """End the claims whose peers have not answered in time."""
        for claim in list(self._claims.values()):
            if claim.state in _ASKED and claim.due <= now:
                self._end(claim, tell_peer=True)

    @property
    def next_due(self) -> float | None:
        """When the next peer has not answered in time."""
        return min((claim.due for claim in self._claims.values() if claim.state in _ASKED), default=None)

    def renewals(self) -> dict[int, list[int]]:
        """The claims that each peer is to hold on to."""
        found: dict[int, list[int]] = {}
        for claim in self._claims.values():
            found.setdefault(claim.peer, []).append(claim.number)
        return found

    def take_messages(self) -> list[tuple[int, ToOwner]]:
        """What is to be sent, in order, each to a peer."""
        messages, self._messages = self._messages, []
        return messages

    def take_news(self) -> list[Told]:
        """What the fetches are to be told, in order."""
        news, self._news = self._news, []
        return news

    @property
    def open_claims(self) -> int:
        return len(self._claims)

    def is_open(self, number: int) -> bool:
        return number in self._claims

    def _end(self, claim: _Claim, *, tell_peer: bool) -> None:
        """It has come to nothing."""
        del self._claims[claim.number]
        before_read = claim.state in (ClaimState.CLAIMING, ClaimState.GRANTED)
        self._news.append(Told(claim.number, News.REFUSED if before_read else News.NOT_CONFIRMED))
        if tell_peer:
            self._messages.append((claim.peer, Release(claim=claim.number)))
