"""The connections of an engine to others of its cluster, for what they say of tickets and claims, and for blocks.

    (none) --connect, or a peer connects--> introducing --both have the secret--> talking --either is gone--> (none)

A peer is one connection and has a number, never used again. It can be sent messages from `link` on: they wait until it
is introduced. Its end is told once, with `on_lost`, whatever was the matter: no such host, another secret, end of file,
silence. Then nothing is held for it on either side, and the next `link` to its address connects anew, but for a while
after an attempt that has failed, in which it is lost at once.

Silence is counted in beats of our own, not in seconds: an engine that was stopped itself drops no peer for it.

Owned by the engine's I/O thread.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from itertools import count

import anyio
import msgspec
from anyio.abc import TaskGroup

from tenure.core.claim_messages import ToOwner, ToReader
from tenure.peers.handshake import Exchange, Greeting, Introduced, answer, initiate
from tenure.peers.secret import Secret
from tenure.wire.conversation import converse
from tenure.wire.framing import Channel, PeerGone
from tenure.wire.outbox import Outbox, OutboxFull
from tenure.wire.sockets import SocketStream

logger = logging.getLogger("tenure.peers")

BEAT = 0.5
"""Seconds between two beats."""
SILENT_BEATS = 6
"""Beats of our own in which a peer may say nothing."""
_INTRODUCTION = 5.0
"""Seconds in which a connection must be made, and both sides know each other."""
_BACK_OFF = 1.0
"""Seconds after a failed attempt in which no other is made."""


BLOCKS = "blocks"
"""The purpose of a connection that is for the bytes of blocks."""


class Beat(msgspec.Struct, frozen=True, tag=True):
    """A sign of life, with the claims that are to be held on to."""

    claims: list[int] = []


Said = ToOwner | ToReader | Beat


class Peer:
    """One connection. Messages given to `send` before it is introduced wait."""

    def __init__(self, number: int, address: str) -> None:
        self.number = number
        self.address = address
        """Where we have connected to; empty for a peer that has connected to us."""
        self.greeting: Greeting | None = None
        self.silent_beats = 0
        self.outbox: Outbox | None = None
        self._waiting: list[ToOwner | ToReader | Beat] = []

    def send(self, message: ToOwner | ToReader | Beat) -> None:
        if self.outbox is None:
            self._waiting.append(message)
            return
        try:
            self.outbox.put(message)
        except OutboxFull as error:
            logger.warning("peer %d: %s", self.number, error)  # it is being ended

    def end(self) -> None:
        """Have the connection ended."""
        if self.outbox is not None:
            self.outbox.give_up()

    def introduce(self, greeting: Greeting, outbox: Outbox) -> None:
        self.greeting, self.outbox = greeting, outbox
        waiting, self._waiting = self._waiting, []
        for message in waiting:
            outbox.put(message)


class Connections:
    """See the module's docstring. `on_message` and `on_lost` are called with the peer."""

    def __init__(
        self,
        greeting: Greeting,
        secret: Secret,
        on_message: Callable[[Peer, ToOwner | ToReader | Beat], None],
        on_lost: Callable[[Peer], None],
        serve_blocks: Callable[[Introduced, SocketStream], Awaitable[None]],
        *,
        beat: float = BEAT,
    ) -> None:
        self._greeting = greeting
        self._secret = secret
        self._on_message = on_message
        self._on_lost = on_lost
        self._serve_blocks = serve_blocks
        self._beat = beat
        self._numbers = count(1)
        self._peers: dict[int, Peer] = {}
        self._linked: dict[str, Peer] = {}
        self._failed_at: dict[str, float] = {}
        self._group: TaskGroup | None = None

    async def run(self) -> None:
        """Connect to whoever is linked to, until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            while True:
                await anyio.sleep(self._beat)
                self.note_beat()

    def note_beat(self) -> None:
        """A beat of our own has passed: end the peers that were silent for too many."""
        for peer in self._peers.values():
            peer.silent_beats += peer.greeting is not None
            if peer.silent_beats > SILENT_BEATS:
                peer.end()

    def link(self, address: str) -> Peer:
        """The connection to the engine at HOST:PORT, as it is or as it comes to be."""
        if (peer := self._linked.get(address)) is None:
            assert self._group is not None
            peer = self._linked[address] = self._new(address)
            self._group.start_soon(self._reach, peer)
        return peer

    def peer(self, number: int) -> Peer | None:
        """The peer with this number; None once it is lost."""
        return self._peers.get(number)

    def talking(self) -> list[Peer]:
        """The peers that are introduced."""
        return [peer for peer in self._peers.values() if peer.greeting is not None]

    async def serve(self, stream: SocketStream) -> None:
        """Serve an engine that has connected, until either is gone."""
        await self._talk(self._new(""), stream, answer(self._greeting, self._secret))

    def _new(self, address: str) -> Peer:
        peer = Peer(next(self._numbers), address)
        self._peers[peer.number] = peer
        return peer

    async def _reach(self, peer: Peer) -> None:
        address = peer.address
        if anyio.current_time() - self._failed_at.get(address, -_BACK_OFF) < _BACK_OFF:
            self._lose(peer, "it could not be reached a moment ago")
            return
        try:
            with anyio.fail_after(_INTRODUCTION):
                stream = await _connect(address)
        except (OSError, ValueError, TimeoutError) as error:
            self._failed_at[address] = anyio.current_time()
            self._lose(peer, f"it cannot be reached: {error}")
            return
        await self._talk(peer, stream, initiate(self._greeting, self._secret))

    async def _talk(self, peer: Peer, stream: SocketStream, exchange: Exchange) -> None:
        reason: object = "this engine ends"
        try:
            with anyio.fail_after(_INTRODUCTION):
                found = await run_exchange(exchange, stream)
            self._check(peer, found.peer)
            if found.peer.purpose == BLOCKS:
                await self._serve_blocks(found, stream)
                reason = "it has been sent blocks"
                return
            channel: Channel[Said] = Channel(stream, Said, found.outgoing.wrap, found.incoming.unwrap)
            outbox = Outbox(channel)
            peer.introduce(found.peer, outbox)
            reason = await converse(channel, outbox, lambda message, _: self._hear(peer, message))
        except (PeerGone, TimeoutError, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            reason = str(error) or f"it did not say who it is within {_INTRODUCTION} s"
            if peer.address:
                self._failed_at[peer.address] = anyio.current_time()
        finally:
            self._lose(peer, str(reason))
            with anyio.CancelScope(shield=True):
                await stream.aclose()

    def _check(self, peer: Peer, greeting: Greeting) -> None:
        """Raises PeerGone for an engine whose blocks are of no use here. One that connects again has left before."""
        ours = self._greeting
        if (greeting.model, greeting.layout) != (ours.model, ours.layout):
            what = "serves another model" if greeting.model != ours.model else "lays out its cache in another way"
            logger.error("the engine %s, which %s, was turned away", greeting.engine, what)
            raise PeerGone(f"it {what}")
        for other in self._peers.values() if greeting.purpose != BLOCKS else ():
            if not peer.address and not other.address and other.greeting and other.greeting.engine == greeting.engine:
                other.end()

    def _hear(self, peer: Peer, message: Said) -> None:
        peer.silent_beats = 0
        self._on_message(peer, message)

    def _lose(self, peer: Peer, reason: str) -> None:
        if peer.address and peer.greeting is None:
            logger.warning("the engine at %s was not reached: %s", peer.address, reason)
        else:
            logger.debug("peer %d is gone: %s", peer.number, reason)
        del self._peers[peer.number]
        if self._linked.get(peer.address) is peer:
            del self._linked[peer.address]
        self._on_lost(peer)


async def run_exchange(exchange: Exchange, stream: SocketStream) -> Introduced:
    """Run one side of the introduction. Raises NotAPeer, and what the stream raises."""
    reply = b""
    try:
        wants = next(exchange)
        while True:
            if isinstance(wants, bytes):
                await stream.send(wants)
                wants = next(exchange)
                continue
            try:
                reply = await stream.receive(wants)
            except anyio.EndOfStream:
                reply = b""
            wants = exchange.send(reply)
    except StopIteration as end:
        found: Introduced = end.value
        return found


async def _connect(address: str) -> SocketStream:
    """Raises OSError, and ValueError for what is no HOST:PORT."""
    host, _, port = address.rpartition(":")
    found = await anyio.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    family, kind, protocol, _, place = found[0]
    connection = socket.socket(family, kind, protocol)
    try:
        connection.setblocking(False)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(connection, place)
    except BaseException:
        connection.close()
        raise
    return SocketStream(connection)
