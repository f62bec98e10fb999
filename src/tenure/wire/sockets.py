"""Unix stream sockets of which every wait may be cancelled at any moment.

anyio's own set the result of a future that is already cancelled when a wait ends in the same turn of the event loop in
which its socket becomes ready, as happens whenever a peer dies; `wait_readable` and `wait_writable` are free of that.
"""

import errno
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

logger = logging.getLogger("tenure.wire")

READ_BYTES = 256 * 1024
_LACKING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_ACCEPT_AFTER = 1.0
"""Seconds between two attempts that fail."""


class SocketStream(ByteStream):
    """A connected socket that does not block, which this object owns. One task may receive, and one send, at a time."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection

    async def receive(self, max_bytes: int = READ_BYTES) -> bytes:
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise self._fault() from error
            else:
                if not data:
                    raise anyio.EndOfStream
                return data

    async def send(self, item: bytes | memoryview) -> None:
        await anyio.lowlevel.checkpoint()
        with memoryview(item) as view:
            sent = 0
            while sent < len(view):
                try:
                    sent += self._socket.send(view[sent:])
                except BlockingIOError:
                    await anyio.wait_writable(self._socket)
                except OSError as error:
                    raise self._fault() from error

    def send_now(self, item: bytes) -> int:
        """Send what can be sent without waiting; how many bytes that was. Not while a `send` is under way.

        That the peer is gone is for `send` to tell.
        """
        try:
            return self._socket.send(item)
        except OSError:
            return 0

    async def send_eof(self) -> None:
        self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Who waits for the socket gets anyio's ClosedResourceError."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()

    def _fault(self) -> Exception:
        return anyio.ClosedResourceError() if self._socket.fileno() < 0 else anyio.BrokenResourceError()


async def connect(path: str) -> SocketStream:
    """Connect to the Unix socket at `path`; raises OSError, also while its backlog is full."""
    await anyio.lowlevel.checkpoint()
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.setblocking(False)
        connection.connect(path)  # on a Unix socket it succeeds or fails at once
    except BaseException:
        connection.close()
        raise
    return SocketStream(connection)


async def serve(listener: socket.socket, handler: Callable[[SocketStream], Coroutine[Any, Any, None]]) -> None:
    """Have `handler` serve each connection in a task of its own, until cancelled.

    A caller waits while there is nothing to make its connection of, such as a descriptor.
    """
    listener.setblocking(False)
    async with anyio.create_task_group() as group:
        while True:
            try:
                connection, _ = listener.accept()
            except BlockingIOError:
                await anyio.wait_readable(listener)
            except OSError as error:
                if error.errno not in _LACKING:
                    raise
                logger.error("a connection could not be accepted: %s", error)
                await anyio.sleep(_ACCEPT_AFTER)
            else:
                connection.setblocking(False)
                group.start_soon(handler, SocketStream(connection))
