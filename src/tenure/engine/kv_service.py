"""What the I/O thread does for other engines: tickets for prompts computed here, claims on those computed elsewhere.

State, owned by this thread: the tickets and their claims (`core.tickets`), the claims on others' tickets
(`core.claims`), the connections, what is on offer and what is being read. The loop has the blocks; it gets orders, and
answers through `ExchangePort`. Bytes move in threads of their own, which nobody waits for.

Whatever happens to a claim or a ticket is carried out by `_flush`: messages to peers, orders to the loop.
"""

import logging
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio
import anyio.to_thread
from anyio.abc import TaskGroup

from tenure.core.claim_messages import (
    BeginRead,
    Claim,
    Confirm,
    Confirmed,
    Granted,
    Refused,
    Release,
    ReleaseTicket,
    ToOwner,
    ToReader,
)
from tenure.core.claims import Claims, News
from tenure.core.fetches import Fetch
from tenure.core.tickets import Tickets
from tenure.engine.kv_offers import BlockOffers
from tenure.engine.kv_reads import BlockReads
from tenure.engine.orders import EndTransfer, ExchangeOrder, FreeTicket, GrantClaim, RefuseClaim, SettleFetch
from tenure.errors import CallerError
from tenure.kv.cache import KVCache
from tenure.peers.block_stream import read_question, send_blocks
from tenure.peers.connections import BEAT, Beat, Connections, Peer
from tenure.peers.handshake import Greeting, Introduced
from tenure.peers.secret import Secret
from tenure.peers.ticket_text import Ticket, digest_of, read_ticket, write_ticket
from tenure.wire import sockets
from tenure.wire.framing import PeerGone
from tenure.wire.sockets import SocketStream

logger = logging.getLogger("tenure.engine")

_PATIENCE = 5.0
"""Seconds in which a peer answers."""


@dataclass(frozen=True)
class KVIdentity:
    """Who this engine is to others."""

    engine: str
    """Its epoch."""
    model: str
    """The fingerprint of its model."""
    address: str
    """HOST:PORT where others reach it."""


class KVService:
    """See the module's docstring. `order` hands an order to the loop."""

    def __init__(
        self,
        identity: KVIdentity,
        cache: KVCache,
        secret: Secret,
        listener: socket.socket,
        order: Callable[[ExchangeOrder], None],
        lease: float,
        most_blocks: int,
        hosts: Sequence[str] = (),
    ) -> None:
        """Tickets hold `most_blocks` together at most. `hosts`: where to connect to; none are all."""
        self._identity = identity
        self._cache = cache
        self._secret = secret
        self._listener = listener
        self._order = order
        self._hosts = hosts
        self._greeting = Greeting(identity.engine, identity.model, cache.shape.layout)
        self.offers = BlockOffers(most_blocks)
        self._tickets = Tickets(lease)
        self._claims = Claims(_PATIENCE)
        self._connections = Connections(self._greeting, secret, self._hear, self._lose, self._serve_blocks)
        self._reads = BlockReads(cache, self._greeting, secret)
        self._addresses: dict[int, str] = {}  # of claims
        self._group: TaskGroup | None = None

    async def run(self) -> None:
        """Serve others, until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._connections.run)
            group.start_soon(sockets.serve, self._listener, self._connections.serve)
            while True:
                await anyio.sleep(BEAT)
                self._beat()

    # what the engine server calls

    def claim(self, text: str, prompt: Sequence[int], salt: str) -> int:
        """Claim what a ticket stands for; returns the claim's number, 0 for what is of no use here.

        Raises CallerError for what is no ticket of this cluster.
        """
        ticket = read_ticket(text, self._secret)
        ours = self._greeting
        fits = (ticket.model, ticket.layout) == (ours.model, ours.layout)
        if not self._may_reach(ticket.address):
            return 0
        if not fits or ticket.engine == ours.engine or ticket.digest != digest_of(prompt[: ticket.tokens], salt):
            return 0
        peer = self._connections.link(ticket.address)
        claim = self._claims.open(peer.number, ticket.name, time.monotonic())
        self._addresses[claim] = ticket.address
        self._flush()
        return claim

    def turn_back(self, texts: Sequence[str]) -> None:
        """Tickets came with a request that does not enter. Those of other models are for other engines to tell of."""
        for text in texts:
            with suppress(CallerError):
                ticket = read_ticket(text, self._secret)
                if ticket.model == self._greeting.model and self._may_reach(ticket.address):
                    self._connections.link(ticket.address).send(ReleaseTicket(ticket=ticket.name))

    def _may_reach(self, address: str) -> bool:
        allowed = not self._hosts or address.rpartition(":")[0] in self._hosts
        if not allowed:
            logger.error("a ticket names %s, which is none of --kv-peers", address)
        return allowed

    def release(self, claims: Sequence[int]) -> None:
        """The request that has these claims is over, or was not admitted."""
        for claim in claims:
            self._claims.release(claim)
            self._addresses.pop(claim, None)
            self._reads.end(claim)
        self._flush()

    def withdraw(self, number: int) -> None:
        """Nobody can be told of a ticket any more."""
        self._tickets.withdraw(number)
        self._flush()

    def offer(self, request: int, number: int, blocks: list[int], prompt: Sequence[int], salt: str) -> str:
        """The loop has handed over a prompt of a request to ticket `number`; returns the ticket's text."""
        self.offers.add(request, number, blocks)
        name = secrets.token_bytes(16)
        self._tickets.offer(number, name, time.monotonic())
        mine, ours = self._identity, self._greeting
        digest = digest_of(prompt, salt)
        ticket = Ticket(name, mine.engine, mine.address, mine.model, ours.layout, len(prompt), digest)
        return write_ticket(ticket, self._secret)

    def fetch(self, fetches: Sequence[Fetch]) -> None:
        """The loop begins to fetch; one without blocks has all it needs."""
        for fetch in fetches:
            if not fetch.blocks:
                self._claims.release(fetch.claim)
            elif self._claims.begin_read(fetch.claim):
                assert self._group is not None
                self._reads.note(fetch)
                self._group.start_soon(self._reads.run, fetch, self._addresses[fetch.claim], self._end_read)
            else:
                self._order(EndTransfer(fetch.transfer))
                self._order(SettleFetch(fetch.transfer, confirmed=False))
        self._flush()

    def freed(self, number: int) -> None:
        """The loop has let go of a ticket's blocks."""
        self._tickets.free(number)
        self.offers.free(number)

    # time, peers, bytes

    def _beat(self) -> None:
        now, renewals = time.monotonic(), self._claims.renewals()
        for peer in self._connections.talking():
            peer.send(Beat(renewals.get(peer.number, [])))
        self._tell(self._tickets.expire(now), "its lease is over")
        self._claims.expire(now)
        self._flush()

    def _hear(self, peer: Peer, message: ToOwner | ToReader | Beat) -> None:
        number, now = peer.number, time.monotonic()
        match message:
            case Beat(claims=claims):
                self._tell([(number, claim) for claim in self._tickets.renew(number, claims, now)], "it is gone")
            case Claim(claim=claim, ticket=name):
                self._claim_for(peer, claim, name)
            case BeginRead(claim=claim):
                if self._tickets.begin_read(number, claim, now) is None:
                    peer.send(Refused(claim=claim, reason="it is gone"))
            case Confirm(claim=claim):
                peer.send(Confirmed(claim=claim, valid=self._tickets.confirm(number, claim, now)))
            case ReleaseTicket(ticket=name):
                self._tickets.release_unclaimed(name)
            case Release(claim=claim):
                self._tickets.release(number, claim)
            case Granted() if message.block_size != self._cache.block_size:
                self._claims.hear(number, Refused(claim=message.claim, reason="its blocks have another size"))
                peer.send(Release(claim=message.claim))
            case Granted() | Refused() | Confirmed():
                self._claims.hear(number, message)
        self._flush()

    def _claim_for(self, peer: Peer, claim: int, name: bytes) -> None:
        found = self._tickets.claim(name, peer.number, claim, time.monotonic())
        if isinstance(found, int):
            assert peer.greeting is not None
            self.offers.let_read(peer.greeting.engine, claim, found)
            peer.send(Granted(claim=claim, block_size=self._cache.block_size))
        else:
            peer.send(Refused(claim=claim, reason=f"the ticket is {found or 'unknown'}"))

    def _lose(self, peer: Peer) -> None:
        self._tickets.lose(peer.number)
        self._claims.lose(peer.number)
        self._flush()

    async def _serve_blocks(self, found: Introduced, stream: SocketStream) -> None:
        """Send a reader what it has a claim on, in a thread."""
        with stream.detach() as connection:
            await anyio.to_thread.run_sync(self._send, found, connection, abandon_on_cancel=True)

    def _send(self, found: Introduced, connection: socket.socket) -> None:
        try:
            question = read_question(connection, found.incoming)
            blocks = self.offers.readable(found.peer.engine, question.claim)
            wanted = blocks[question.first : question.first + question.count]
            send_blocks(connection, map(self._cache.block, wanted))
        except (OSError, PeerGone) as error:
            logger.info("blocks were not sent to the end: %s", error)

    def _end_read(self, fetch: Fetch, complete: bool) -> None:
        """The transfer of a fetch writes no more."""
        self._order(EndTransfer(fetch.transfer))
        self._claims.end_read(fetch.claim, time.monotonic(), complete=complete)
        self._flush()

    def _tell(self, ended: Sequence[tuple[int, int]], reason: str) -> None:
        for number, claim in ended:
            if (peer := self._connections.peer(number)) is not None:
                peer.send(Refused(claim=claim, reason=reason))

    def _flush(self) -> None:
        for number, message in self._claims.take_messages():
            if (peer := self._connections.peer(number)) is not None:
                peer.send(message)
        for claim, news in self._claims.take_news():
            match news:
                case News.GRANTED:
                    self._order(GrantClaim(claim))
                case News.REFUSED:
                    self._order(RefuseClaim(claim))
                case News.CONFIRMED | News.NOT_CONFIRMED:
                    self._order(SettleFetch(self._reads.transfer_of(claim), confirmed=news is News.CONFIRMED))
                    self._reads.end(claim)
        for number in self._tickets.take_ended():
            self.offers.end(number)
            self._order(FreeTicket(number))
