"""Blocks over a socket of their own: what a claim stands for is sent as it lies in one cache and received into another.

    reader                                          owner
    introduction (`handshake`), purpose "blocks"
    ReadBlocks, sealed                 -->
                                       <--          the bytes of each block, one after the other; then the end

What is read is worth nothing before the owner has confirmed the claim; so an end that comes too early, or bytes of
other prompts, do no harm. The bytes themselves are not signed. All here blocks, and runs in threads of its own; to shut
the socket down is to end it, and once `read_blocks` has returned nothing is written to any more.
"""

import socket
from collections.abc import Callable, Iterable, Sequence

import msgspec

from tenure.peers.connections import BLOCKS
from tenure.peers.handshake import Exchange, Greeting, Introduced, Seal, initiate
from tenure.peers.secret import Secret
from tenure.wire.framing import PeerGone

_PATIENCE = 10.0
"""Seconds in which some bytes must move."""
_MOST_QUESTION_BYTES = 4096


class ReadBlocks(msgspec.Struct, frozen=True, array_like=True):
    """The reader wants `count` blocks of a claim of its engine, from number `first` on."""

    claim: int
    first: int
    count: int


def read_blocks(
    address: str,
    greeting: Greeting,
    secret: Secret,
    question: ReadBlocks,
    targets: Iterable[Sequence[memoryview]],
    opened: Callable[[socket.socket], None],
) -> None:
    """Receive blocks into `targets`, the pieces of each. `opened` is told the socket, by which it can be ended.

    Raises OSError, PeerGone, ValueError for what is no HOST:PORT.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE) as connection:
        opened(connection)
        mine = msgspec.structs.replace(greeting, purpose=BLOCKS)
        found = _introduce(initiate(mine, secret), connection)
        asked = found.outgoing.wrap(msgspec.msgpack.encode(question))
        connection.sendall(len(asked).to_bytes(4, "big") + asked)
        for pieces in targets:
            for piece in pieces:
                _receive_into(connection, piece)


def read_question(connection: socket.socket, incoming: Seal) -> ReadBlocks:
    """What a reader asks for. Raises OSError, PeerGone."""
    connection.settimeout(_PATIENCE)
    head = bytearray(4)
    _receive_into(connection, memoryview(head))
    size = int.from_bytes(head, "big")
    if size > _MOST_QUESTION_BYTES:
        raise PeerGone(f"a question of {size} bytes")
    data = bytearray(size)
    _receive_into(connection, memoryview(data))
    try:
        return msgspec.msgpack.decode(incoming.unwrap(bytes(data)), type=ReadBlocks)
    except msgspec.MsgspecError as error:
        raise PeerGone(f"something arrived that is no question: {error}") from error


def send_blocks(connection: socket.socket, blocks: Iterable[Sequence[memoryview]]) -> None:
    """Send the pieces of each block. Raises OSError."""
    connection.settimeout(_PATIENCE)
    for pieces in blocks:
        for piece in pieces:
            connection.sendall(piece)


def _introduce(exchange: Exchange, connection: socket.socket) -> Introduced:
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


def _receive_into(connection: socket.socket, piece: memoryview) -> None:
    start = 0
    while start < len(piece):
        got = connection.recv_into(piece[start:])
        if not got:
            raise PeerGone("the other side hung up before all was sent")
        start += got
