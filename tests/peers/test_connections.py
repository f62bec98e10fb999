"""Connections between engines, over real sockets: who is let in, what is heard, and that every end is told once."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest

from tenure.core.claim_messages import Claim, Granted
from tenure.peers.connections import SILENT_BEATS, Beat, Connections, Peer
from tenure.peers.handshake import Greeting, Introduced
from tenure.peers.secret import Secret
from tenure.wire import sockets
from tenure.wire.sockets import SocketStream
from tests.tasks import run

SECRET = Secret(b"a secret of this cluster")
LONG = 60.0
"""A beat that does not come."""


async def _no_blocks(_found: Introduced, _stream: SocketStream) -> None: ...


class Engine:
    """What one engine hears of the others."""

    def __init__(
        self, name: str, secret: Secret = SECRET, layout: str = "l", model: str = "m", beat: float = LONG
    ) -> None:
        self.heard: list[tuple[int, object]] = []
        self.lost: list[int] = []
        self._changed = anyio.Event()
        greeting = Greeting(name, model, layout)
        self.connections = Connections(greeting, secret, self._hear, self._lose, _no_blocks, beat=LONG)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.listener.getsockname()[1]}"
        self.scope = anyio.CancelScope()

    def _hear(self, peer: Peer, message: object) -> None:
        self.heard.append((peer.number, message))
        self._notify()

    def _lose(self, peer: Peer) -> None:
        self.lost.append(peer.number)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def until(self, *, heard: int = 0, lost: int = 0) -> None:
        with anyio.fail_after(20):
            while len(self.heard) < heard or len(self.lost) < lost:
                await self._changed.wait()

    async def live(self) -> None:
        with self.scope, self.listener:
            async with anyio.create_task_group() as group:
                group.start_soon(sockets.serve, self.listener, self.connections.serve)
                group.start_soon(self.connections.run)


@asynccontextmanager
async def living(*engines: Engine) -> AsyncIterator[None]:
    async with anyio.create_task_group() as group:
        for engine in engines:
            group.start_soon(engine.live)
        await anyio.lowlevel.checkpoint()
        await anyio.lowlevel.checkpoint()
        yield
        for engine in engines:
            engine.scope.cancel()


CLAIM, GRANTED = Claim(claim=1, ticket=b"t"), Granted(claim=1, block_size=16)


def test_what_is_said_before_the_introduction_arrives_in_order() -> None:
    async def scenario() -> None:
        d, p = Engine("d"), Engine("p")
        async with living(d, p):
            peer = d.connections.link(p.address)
            peer.send(CLAIM)
            peer.send(Beat([1]))
            assert d.connections.link(p.address) is peer
            await p.until(heard=2)
            ((number, first), (_, second)) = p.heard
            assert (first, second) == (CLAIM, Beat([1]))
            back = p.connections.peer(number)
            assert back is not None
            assert back.greeting is not None
            assert back.greeting.engine == "d"
            back.send(GRANTED)
            await d.until(heard=1)
            assert d.heard == [(peer.number, GRANTED)]

    run(scenario)


def test_the_end_of_either_is_told_to_the_other_once_and_the_next_link_connects_anew() -> None:
    async def scenario() -> None:
        d, p = Engine("d"), Engine("p")
        async with living(d, p):
            first = d.connections.link(p.address)
            first.send(CLAIM)
            await p.until(heard=1)
            p.scope.cancel()
            await d.until(lost=1)
            assert (d.lost, d.connections.peer(first.number)) == ([first.number], None)
        assert p.lost == [1]

    run(scenario)


def test_an_engine_that_connects_again_has_left_before() -> None:
    async def scenario() -> None:
        d, again, p = Engine("d"), Engine("d"), Engine("p")
        async with living(d, again, p):
            d.connections.link(p.address).send(CLAIM)
            await p.until(heard=1)
            again.connections.link(p.address).send(CLAIM)
            await p.until(heard=2, lost=1)
            assert p.lost == [p.heard[0][0]]
            await d.until(lost=1)

    run(scenario)


@pytest.mark.parametrize(
    "other",
    [{"secret": Secret(b"the secret of another")}, {"layout": "another"}, {"model": "another"}],
    ids=["secret", "layout", "model"],
)
def test_others_are_turned_away_and_hear_nothing(other: dict[str, object]) -> None:
    async def scenario() -> None:
        d, p = Engine("d"), Engine("p", **other)
        async with living(d, p):
            d.connections.link(p.address).send(CLAIM)
            await d.until(lost=1)
            await p.until(lost=1)
            assert (p.heard, d.heard) == ([], [])

    run(scenario)


@pytest.mark.parametrize("address", ["127.0.0.1:1", "127.0.0.1", "no-such-host.invalid:9", "127.0.0.1:x"])
def test_who_cannot_be_reached_is_lost_and_not_tried_again_at_once(address: str) -> None:
    async def scenario() -> None:
        d = Engine("d")
        async with living(d):
            first = d.connections.link(address)
            await d.until(lost=1)
            second = d.connections.link(address)
            await d.until(lost=2)
            assert d.lost == [first.number, second.number]

    run(scenario)


def test_one_that_says_nothing_is_lost_and_one_that_beats_is_not() -> None:
    async def scenario() -> None:
        d, p = Engine("d"), Engine("p")
        async with living(d, p):
            d.connections.link(p.address).send(CLAIM)
            await p.until(heard=1)
            back = p.connections.peer(p.heard[0][0])
            assert back is not None
            for beats in range(1, 4):
                for _ in range(SILENT_BEATS):
                    d.connections.note_beat()
                back.send(Beat())
                await d.until(heard=beats)
            assert d.lost == []
            for _ in range(SILENT_BEATS + 1):
                d.connections.note_beat()
            await d.until(lost=1)
            await p.until(lost=1)

    run(scenario)


@pytest.mark.parametrize("said", [b"", b"GET / HTTP/1.1\r\n\r\n", bytes(5000)])
def test_strangers_get_nowhere(said: bytes) -> None:
    async def scenario() -> None:
        p = Engine("p")
        async with living(p):
            stranger = await anyio.connect_tcp(*p.address.split(":"))
            async with stranger:
                await stranger.send(said) if said else await stranger.send_eof()
                await p.until(lost=1)
            assert p.heard == []

    run(scenario)
