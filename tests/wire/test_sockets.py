"""A wait on a socket may be cancelled at any moment, also in the turn in which the socket becomes ready."""

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from tenure.wire.sockets import SocketStream, connect, serve

LARGE = bytes(range(256)) * 40_000


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    """Run `scenario` on the event loop that the server uses, in which no callback may fail."""
    complaints: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
        with anyio.fail_after(60):
            await scenario()
        for _ in range(5):
            await anyio.lowlevel.checkpoint()

    anyio.run(watched, backend_options={"use_uvloop": True})
    assert not complaints, complaints


@contextmanager
def pair() -> Iterator[tuple[SocketStream, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield SocketStream(near), far


@contextmanager
def listening(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield listener


def test_a_receive_is_cancelled_as_data_arrives() -> None:
    async def scenario() -> None:
        with pair() as (stream, peer):
            async with anyio.create_task_group() as group:
                group.start_soon(stream.receive)
                await anyio.wait_all_tasks_blocked()
                peer.send(b"x")
                group.cancel_scope.cancel()
            assert await stream.receive() == b"x", "what arrived was lost"

    run(scenario)


def test_a_receive_is_cancelled_as_the_peer_dies() -> None:
    async def scenario() -> None:
        with pair() as (stream, peer):
            async with anyio.create_task_group() as group:
                group.start_soon(stream.receive)
                await anyio.wait_all_tasks_blocked()
                peer.close()
                group.cancel_scope.cancel()
            with pytest.raises(anyio.EndOfStream):
                await stream.receive()
            with pytest.raises(anyio.BrokenResourceError):
                await stream.send(b"x")

    run(scenario)


def test_a_send_is_cancelled_as_there_is_room_again() -> None:
    async def scenario() -> None:
        with pair() as (stream, peer):
            async with anyio.create_task_group() as group:
                group.start_soon(stream.send, LARGE)
                await anyio.wait_all_tasks_blocked()
                peer.recv(1 << 20)
                group.cancel_scope.cancel()

    run(scenario)


def test_all_of_a_large_message_arrives() -> None:
    async def scenario() -> None:
        with pair() as (stream, peer):
            peer.setblocking(False)
            reader = SocketStream(peer)
            received = bytearray()
            async with anyio.create_task_group() as group:
                group.start_soon(stream.send, LARGE)
                while len(received) < len(LARGE):
                    received += await reader.receive()
            assert received == LARGE

    run(scenario)


def test_what_can_be_sent_at_once_is() -> None:
    async def scenario() -> None:
        with pair() as (stream, peer):
            assert stream.send_now(b"hello") == 5
            assert peer.recv(10) == b"hello"
            taken = stream.send_now(LARGE)
            assert 0 < taken < len(LARGE)
            assert stream.send_now(b"more") == 0, "there is no room"
            received = 0
            while received < taken:
                received += len(peer.recv(1 << 20))
            peer.close()
            assert stream.send_now(b"x") == 0
            with pytest.raises(anyio.BrokenResourceError):
                await stream.send(b"x")

    run(scenario)


def test_closing_ends_the_waits() -> None:
    async def scenario() -> None:
        with pair() as (stream, _peer):
            ended: list[str] = []

            async def wait(name: str, work: Awaitable[object]) -> None:
                with pytest.raises(anyio.ClosedResourceError):
                    await work
                ended.append(name)

            async with anyio.create_task_group() as group:
                group.start_soon(wait, "receive", stream.receive())
                group.start_soon(wait, "send", stream.send(LARGE))
                await anyio.wait_all_tasks_blocked()
                await stream.aclose()
                await stream.aclose()
            assert sorted(ended) == ["receive", "send"]
            with pytest.raises(anyio.ClosedResourceError):
                await stream.send(b"x")

    run(scenario)


def test_serving_is_cancelled_as_a_connection_comes(tmp_path: Path) -> None:
    async def handler(_stream: SocketStream) -> None:
        raise AssertionError("cancelled before")

    async def scenario() -> None:
        with listening(tmp_path / "s") as listener, socket.socket(socket.AF_UNIX) as caller:
            async with anyio.create_task_group() as group:
                group.start_soon(serve, listener, handler)
                await anyio.wait_all_tasks_blocked()
                caller.connect(str(tmp_path / "s"))
                group.cancel_scope.cancel()

    run(scenario)


def test_each_connection_is_served_in_a_task_of_its_own(tmp_path: Path) -> None:
    async def echo(stream: SocketStream) -> None:
        async with stream:
            await stream.send(await stream.receive())

    async def scenario() -> None:
        with listening(tmp_path / "s") as listener:
            async with anyio.create_task_group() as group:
                group.start_soon(serve, listener, echo)
                silent, speaking = await connect(str(tmp_path / "s")), await connect(str(tmp_path / "s"))
                async with silent, speaking:
                    await speaking.send(b"hello")
                    assert await speaking.receive() == b"hello"
                    with pytest.raises(anyio.EndOfStream):
                        await speaking.receive()
                group.cancel_scope.cancel()

    run(scenario)


def test_a_caller_waits_for_a_descriptor_to_become_free(tmp_path: Path) -> None:
    async def hello(stream: SocketStream) -> None:
        async with stream:
            await stream.send(b"hello")

    async def scenario() -> None:
        with listening(tmp_path / "s") as listener, socket.socket(socket.AF_UNIX) as caller:
            caller.setblocking(False)
            caller.connect(str(tmp_path / "s"))
            waiting = SocketStream(caller)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            async with anyio.create_task_group() as group:
                resource.setrlimit(resource.RLIMIT_NOFILE, (caller.fileno() + 1, hard))
                try:
                    group.start_soon(serve, listener, hello)
                    for _ in range(20):
                        await anyio.lowlevel.checkpoint()
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
                assert await waiting.receive() == b"hello"
                group.cancel_scope.cancel()

    run(scenario)


def test_nobody_listens(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(FileNotFoundError):
            await connect(str(tmp_path / "nothing"))

    run(scenario)
