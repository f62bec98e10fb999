"""Unix stream sockets on which every wait can be cancelled safely.

anyio's own sockets fail (they set a cancelled future's result) when a wait is cancelled in the same cycle of the event
loop in which the socket becomes ready, as happens when a peer dies; `wait_readable` and `wait_writable` do not.
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
        """Send what can be sent without waiting; returns the number of bytes. Not while a `send` is under way.

        Errors are ignored here; the next `send` raises them.
        """
        try:
            return self._socket.send(item)
        except OSError:
            return 0

    def detach(self) -> socket.socket:
        """The socket, which is the caller's from now on."""
        return socket.socket(fileno=self._socket.detach())

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
    """Run `handler` for each connection in a task of its own, until cancelled.

    While descriptors or memory are lacking, new connections wait in the backlog.
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
