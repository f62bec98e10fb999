"""A client that costs little: it shares its cores with the servers that it measures."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx
from anyio.streams.buffered import BufferedByteReceiveStream

_MOST_HEAD = 65536


class Connection:
    """One kept-alive HTTP connection to a server that states the length of its answers."""

    def __init__(self, stream: anyio.abc.SocketStream) -> None:
        self._stream = stream
        self._received = BufferedByteReceiveStream(stream)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The answer, as JSON; raises RuntimeError unless it is a 200."""
        await self._stream.send(request(path, body))
        head = await self._received.receive_until(b"\r\n\r\n", _MOST_HEAD)
        status, *fields = head.decode("latin-1").split("\r\n")
        length = next(int(field.split(":")[1]) for field in fields if field.lower().startswith("content-length:"))
        answer = await self._received.receive_exactly(length)
        if status.split()[1] != "200":
            raise RuntimeError(f"{status}: {answer[:500]!r}")
        return json.loads(answer)


def request(path: str, body: Mapping[str, Any]) -> bytes:
    """A whole POST."""
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(content)}"
    return f"{head}\r\n\r\n".encode() + content


def address(url: str) -> tuple[str, int]:
    """Host and port."""
    parsed = httpx.URL(url)
    return parsed.host, parsed.port or 80


@asynccontextmanager
async def connect(url: str) -> AsyncIterator[Connection]:
    async with await anyio.connect_tcp(*address(url)) as stream:
        yield Connection(stream)
