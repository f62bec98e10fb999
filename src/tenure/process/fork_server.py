"""Work that would hold up all else in a process, done in a process that is forked for it.

    API process --a socket for each piece of work--> fork server --fork--> worker

The fork server is a copy of the process that starts it, made before that has threads: it has all that the work needs,
and waits. A worker gets its input as bytes, and sends bytes back; whoever closes the socket between them ends the
worker, whatever it is computing. So nothing that a worker makes of its input is ever an object of the process that
asks, which takes in and gives out a slice at a time.
"""

import logging
import mmap
import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import anyio

from tenure.errors import ResourceError
from tenure.process.system import die_with_parent
from tenure.wire.sockets import READ_BYTES, SocketStream

logger = logging.getLogger("tenure.process")

SLICE_BYTES = READ_BYTES
"""The most that is sent or received between two turns of the event loop."""
_SIZES = struct.Struct(">QQ")
_STARTED, _TAKEN, _DONE = b"s", b"t", b"d"
_START_WITHIN = 10.0
"""Seconds in which a worker starts, whatever else the machine does, unless the fork server is stopped."""

Buffer = bytearray | mmap.mmap
Work = Callable[[bytearray, bytearray, Callable[[], None]], tuple[bytes, Sequence[bytes | memoryview]]]
"""Makes two answers, the second in parts, of two inputs; the function is to be called when the second is needed no
longer."""


class WorkFailed(ResourceError):
    """A worker has ended without an answer, or there is none to be had."""


class ForkServer:
    """Start it before this process has threads or an event loop. It ends with the process."""

    def __init__(self, control: socket.socket, pid: int, start_within: float) -> None:
        self._control = control
        self._pid = pid
        self._start_within = start_within

    @classmethod
    def start(cls, work: Work, *, start_within: float = _START_WITHIN) -> "ForkServer":
        """Fork the server. Descriptors beyond the standard ones are not kept open there."""
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        if (pid := os.fork()) == 0:
            _serve(theirs, work, parent)
        theirs.close()
        ours.setblocking(False)  # one that is stopped takes nothing, and must not stop this process, too
        return cls(ours, pid, start_within)

    @property
    def alive(self) -> bool:
        try:
            return bool(self._control.recv(1))
        except BlockingIOError:
            return True
        except ConnectionError:  # it left work untaken
            return False

    def close(self) -> None:
        """End the server; workers go on."""
        self._control.close()

    async def run(
        self, head: bytes, size: int, body: Iterable[bytes], taken: Callable[[], None]
    ) -> tuple[Buffer, Buffer]:
        """Both answers of the work to `head` and `body`, which has `size` bytes and comes in parts.

        `taken` is called when the body is needed no longer.

        Raises WorkFailed; a server that starts no worker in time is killed. A cancel ends the worker.
        """
        stream = self._connect()
        try:
            with anyio.move_on_after(self._start_within) as waiting:
                await stream.receive(1)
            if waiting.cancelled_caught:
                os.kill(self._pid, signal.SIGKILL)
                raise WorkFailed("the fork server has been stopped")
            await stream.send(_SIZES.pack(len(head), size))
            for part in chain([head], body):
                for start in range(0, len(part), SLICE_BYTES):
                    await stream.send(part[start : start + SLICE_BYTES])
            while await stream.receive(1) == _TAKEN:
                taken()
            first, second = _SIZES.unpack(await _receive(stream, _SIZES.size))
            return await _receive(stream, first), await _receive(stream, second)
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            raise WorkFailed("a process that worked on a request has ended") from error
        finally:
            await stream.aclose()

    def _connect(self) -> SocketStream:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            try:
                socket.send_fds(self._control, [b"w"], [theirs.fileno()])
            except OSError as error:
                ours.close()
                raise WorkFailed("the fork server takes no work") from error
        return SocketStream(ours)


async def _receive(stream: SocketStream, size: int) -> Buffer:
    buffer = mmap.mmap(-1, size) if size > SLICE_BYTES else bytearray(size)  # nobody fills the one with zeros at once
    start = 0
    while start < size:
        part = await stream.receive(min(size - start, SLICE_BYTES))
        buffer[start : start + len(part)] = part
        start += len(part)
    return buffer


# in the fork server


def _serve(control: socket.socket, work: Work, parent: int) -> None:
    die_with_parent(parent)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, signal.SIG_IGN)  # nobody waits for the workers
    os.closerange(3, control.fileno())
    os.closerange(control.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
    while True:
        _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
        if not descriptors:
            os._exit(0)
        try:
            if os.fork() == 0:
                control.close()
                _answer(socket.socket(fileno=descriptors[0]), work)
        except OSError as error:
            logger.error("no process could be forked: %s", error)
        os.close(descriptors[0])


def _answer(connection: socket.socket, work: Work) -> None:
    """In a worker: do one piece of work, and end."""
    try:
        connection.sendall(_STARTED)
        first, second = _SIZES.unpack(_read(connection, _SIZES.size))
        head, body = _read(connection, first), _read(connection, second)
        threading.Thread(target=_read, args=(connection, 1), daemon=True).start()  # ends with the other side
        answer, parts = work(head, body, lambda: connection.sendall(_TAKEN))
        connection.sendall(_DONE)
        connection.sendall(_SIZES.pack(len(answer), sum(map(len, parts))))
        for part in (answer, *parts):
            connection.sendall(part)
        os._exit(0)
    except BaseException:
        logger.exception("a worker failed")
        os._exit(1)


def _read(connection: socket.socket, size: int) -> bytearray:
    """Exactly so many bytes. The worker ends when the other side is gone."""
    data = bytearray(size)
    with memoryview(data) as view:
        start = 0
        while start < size:
            try:
                got = connection.recv_into(view[start:])
            except OSError:
                got = 0
            if not got:
                os._exit(0)
            start += got
    return data
