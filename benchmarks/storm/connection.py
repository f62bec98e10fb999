"""A client's side of one HTTP/1.1 connection, in raw bytes: it can read as slowly, and leave as rudely, as it likes."""

import json
import socket
import struct
from collections.abc import Awaitable, Mapping
from types import TracebackType

import anyio
import httpx

PATIENCE = 90.0
"""Seconds that no answer may be silent for: whoever waits longer has found something that hangs."""
_SMALL_BUFFER = 4096


class Cut(Exception):
    """The server has ended the connection in the middle of an answer, or before it."""


class Hung(Exception):
    """Nothing came for `PATIENCE` seconds."""


class Connection:
    """Made by `connect`; leaving its `with` block closes it."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._unread = bytearray()
        self._events = bytearray()
        self._left = 0
        """Bytes of a body of known length that are to be read; -1 for one in chunks."""

    def __enter__(self) -> "Connection":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()

    async def send(self, data: bytes) -> None:
        """Send all of `data`; what the server refuses to take is no fault: it has answered, or will not."""
        rest = memoryview(data)
        try:
            while rest:
                await _in_time(anyio.wait_writable(self._socket))
                rest = rest[self._socket.send(rest) :]
        except OSError:
            return

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers, their names in lower case. Raises Cut."""
        status = int((await self._line()).split()[1])
        headers = {}
        while line := (await self._line()).decode("latin-1"):
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        self._left = -1 if "chunked" in headers.get("transfer-encoding", "") else int(headers.get("content-length", 0))
        return status, headers

    async def body(self) -> bytes:
        """The rest of the body. Raises Cut."""
        body = bytearray()
        while part := await self._part():
            body += part
        return bytes(body)

    async def event(self) -> str | None:
        """The data of the next server-sent event; None after the last. Raises Cut."""
        while True:
            block, found, rest = self._events.partition(b"\n\n")
            if found:
                self._events = rest
                if block.startswith(b"data: "):
                    return block[6:].decode()
            elif part := await self._part():
                self._events += part
            else:
                return None

    async def wait_end(self, seconds: float) -> bool:
        """Read on and forget it; whether the connection's end came within so many seconds."""
        with anyio.move_on_after(seconds):
            try:
                while True:
                    self._unread.clear()
                    await self._fill()
            except Cut:
                return True
        return False

    # ways of leaving

    def close(self) -> None:
        """FIN; RST where something is unread."""
        self._socket.close()

    def reset(self) -> None:
        """RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    async def half_close(self) -> None:
        """FIN, and wait for the server to end the connection. Raises Hung."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return
        if not await self.wait_end(PATIENCE):
            raise Hung("a half-closed connection stays open")

    # reading

    async def _part(self) -> bytes:
        """The next bytes of the body; none at its end."""
        if self._left < 0:
            size = int(await self._line() or b"0", 16)
            part = await self._exactly(size)
            await self._line()
            self._left = -1 if size else 0
            return part
        if self._left and not self._unread:
            await self._fill()
        part = bytes(self._unread[: self._left])
        del self._unread[: self._left]
        self._left -= len(part)
        return part

    async def _line(self) -> bytes:
        while (end := self._unread.find(b"\r\n")) < 0:
            await self._fill()
        line = bytes(self._unread[:end])
        del self._unread[: end + 2]
        return line

    async def _exactly(self, count: int) -> bytes:
        while len(self._unread) < count:
            await self._fill()
        found = bytes(self._unread[:count])
        del self._unread[:count]
        return found

    async def _fill(self) -> None:
        try:
            await _in_time(anyio.wait_readable(self._socket))
            data = self._socket.recv(65536)
        except OSError as error:
            raise Cut(str(error)) from error
        if not data:
            raise Cut("end of the connection")
        self._unread += data


async def _in_time(ready: Awaitable[None]) -> None:
    with anyio.move_on_after(PATIENCE) as scope:
        await ready
    if scope.cancelled_caught:
        raise Hung(f"nothing came for {PATIENCE:g} seconds")


async def connect(address: str, *, small: bool = False) -> Connection:
    """A connection to the server at `address`; a small one soon holds the server up if nobody reads. Raises Cut."""
    url = httpx.URL(address)
    sock = socket.socket()
    sock.setblocking(False)
    if small:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _SMALL_BUFFER)
    try:
        sock.connect_ex((url.host, url.port or 80))
        await _in_time(anyio.wait_writable(sock))
        if error := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise Cut(f"no connection: error {error}")
    except BaseException:
        sock.close()
        raise
    return Connection(sock)


def post(path: str, body: object, headers: Mapping[str, str], declared: int | None = None) -> bytes:
    """The bytes of a POST. A body of bytes is sent as it is; `declared` is the length that the head tells, if another.

    A header without a value is left out.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    given = {
        "host": "soak",
        "content-type": "application/json",
        "content-length": str(len(data) if declared is None else declared),
        **headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in given.items() if value)
    return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + data


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nhost: soak\r\n\r\n".encode()
