"""The HTTP server of an API process, run in this one on a free port, and a client that speaks raw bytes."""

import asyncio
import contextlib
import socket
import ssl
import struct
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import uvicorn

from tenure.http.guard import Guard
from tenure.observe.counters import CountersSnapshot, SharedCounters
from tests.tasks import until


@dataclass
class WebServer:
    """A running server, and what it counts."""

    guard: Guard
    counters: SharedCounters
    server: uvicorn.Server
    port: int = 0

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[None]:
        """Serve. At the end every connection is closed, also after a failure, and nothing may be open."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
            async with anyio.create_task_group() as group:
                group.start_soon(self._serve, listener)
                await until(lambda: self.server.started)
                try:
                    yield
                except BaseException:
                    self.server.force_exit = True
                    raise
                finally:
                    self.server.should_exit = True
        now = self.guard.snapshot()
        assert (now.open, now.watchers, now.body_bytes) == (0, 0, 0)

    async def _serve(self, listener: socket.socket) -> None:
        with anyio.CancelScope(shield=True):  # a server that is cancelled leaves its sockets open
            await self.server.serve([listener])

    @contextlib.asynccontextmanager
    async def client(self, tls: ssl.SSLContext | None = None) -> AsyncIterator["RawClient"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=tls, limit=1 << 20)
        client = RawClient(reader, writer)
        try:
            yield client
        finally:
            client.close()

    def counts(self) -> CountersSnapshot:
        return self.counters.snapshot()

    async def idle(self, **outcomes: int) -> None:
        """Wait until nothing is open, and check that every request was counted once, as `outcomes` says."""
        await until(lambda: self.guard.snapshot().open == 0 and self.guard.snapshot().watchers == 0)
        now = self.counts()
        assert (now.open, now.outcomes, now.arrivals) == (0, outcomes, sum(outcomes.values()))
        assert not any(stage.open for stage in now.stages)

    async def idle_after_arrival(self, **outcomes: int) -> None:
        """As `idle`, once the first request has arrived."""
        await until(lambda: self.counts().arrivals > 0)
        await self.idle(**outcomes)


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> Reply:
        """Read one whole response."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
        if "transfer-encoding" in headers:
            body = await self._chunks()
        else:
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(int(lines[0].split(" ")[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()
        return body

    async def until(self, mark: bytes) -> bytes:
        return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Read until the server closes."""
        return await self.reader.read(-1)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Leave with a RST."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def half_close(self) -> None:
        self.writer.write_eof()


def post(path: str, body: bytes = b"{}", **headers: str) -> bytes:
    """The bytes of a POST; header names are written with underscores."""
    fields = {"host": "x", "content-type": "application/json", "content-length": str(len(body))}
    fields.update({name.replace("_", "-"): value for name, value in headers.items()})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value != "-")
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body
