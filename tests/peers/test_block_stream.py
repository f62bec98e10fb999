"""Blocks over a socket: all of them or an error, and not a byte more once the read has returned."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tenure.peers.block_stream import ReadBlocks, read_blocks, read_question, send_blocks
from tenure.peers.handshake import Greeting, Introduced, answer
from tenure.peers.secret import Secret
from tenure.wire.framing import PeerGone

SECRET = Secret(b"a secret of this cluster")
GREETING = Greeting("d", "m", "l")
QUESTION = ReadBlocks(7, 2, 3)
BLOCKS = [[bytes([number]) * 1000, bytes([number + 100]) * 500] for number in range(3)]


def introduce(connection: socket.socket) -> Introduced:
    exchange = answer(Greeting("p", "m", "l"), SECRET)
    try:
        wants = next(exchange)
        while True:
            if isinstance(wants, bytes):
                connection.sendall(wants)
                wants = next(exchange)
            else:
                wants = exchange.send(connection.recv(wants))
    except StopIteration as end:
        found: Introduced = end.value
        return found


@contextmanager
def owner(serve: Callable[[socket.socket, ReadBlocks], None]) -> Iterator[str]:
    """One that lets `serve` answer one question; its address."""

    def run() -> None:
        connection, _ = listener.accept()
        with connection:
            serve(connection, read_question(connection, introduce(connection).incoming))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(20)
        assert not thread.is_alive()


def read(address: str, opened: Callable[[socket.socket], None] = lambda _: None) -> list[list[bytearray]]:
    found = [[bytearray(len(piece)) for piece in pieces] for pieces in BLOCKS]
    targets = ([memoryview(piece) for piece in pieces] for pieces in found)
    read_blocks(address, GREETING, SECRET, QUESTION, targets, opened)
    return found


def test_what_is_sent_is_received_piece_by_piece() -> None:
    asked: list[ReadBlocks] = []

    def serve(connection: socket.socket, question: ReadBlocks) -> None:
        asked.append(question)
        send_blocks(connection, [[memoryview(piece) for piece in pieces] for pieces in BLOCKS])

    with owner(serve) as address:
        assert read(address) == BLOCKS
    assert asked == [QUESTION]


@pytest.mark.parametrize("blocks", [0, 1, 2])
def test_less_than_all_is_an_error(blocks: int) -> None:
    def serve(connection: socket.socket, _question: ReadBlocks) -> None:
        send_blocks(connection, [[memoryview(piece) for piece in pieces] for pieces in BLOCKS[:blocks]])

    with owner(serve) as address, pytest.raises(PeerGone):
        read(address)


def test_a_read_that_nobody_waits_for_is_ended_by_its_socket() -> None:
    asked, ended = threading.Event(), threading.Event()
    sockets: list[socket.socket] = []

    def serve(_connection: socket.socket, _question: ReadBlocks) -> None:
        asked.set()
        assert ended.wait(20)

    def end() -> None:
        assert asked.wait(20)
        sockets[0].shutdown(socket.SHUT_RDWR)

    with owner(serve) as address:
        ending = threading.Thread(target=end)
        ending.start()
        with pytest.raises((PeerGone, OSError)):
            read(address, sockets.append)
        ended.set()
        ending.join(20)


def test_who_has_another_secret_is_told_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            connection, _ = listener.accept()
            with connection, pytest.raises(PeerGone):
                introduce(connection)

        thread = threading.Thread(target=run)
        thread.start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises((PeerGone, OSError)):
            read_blocks(address, GREETING, Secret(b"the secret of another"), QUESTION, [], lambda _: None)
        thread.join(20)
