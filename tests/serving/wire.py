"""A client that speaks raw bytes, and can leave in every way."""

import contextlib
import json
import socket
import ssl
import struct
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


class Wire:
    """One connection. Reads block for at most the socket's timeout."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._file = sock.makefile("rb")
        self._gone = False

    def __enter__(self) -> "Wire":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._gone:
            self.close()

    @property
    def port(self) -> int:
        """The client's own."""
        return int(self._socket.getsockname()[1])

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def send_until_refused(self, data: bytes) -> None:
        """Send `data` over and over until the peer has hung up."""
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                self._socket.sendall(data)
            raise AssertionError("the peer took everything")

    def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of a response."""
        status = int(self._file.readline().split()[1])
        fields = {}
        while line := self._file.readline().strip().decode("latin-1"):
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        return status, fields

    def reply(self) -> tuple[int, dict[str, str], bytes]:
        """A whole response; one that is cut short gives what there was."""
        status, fields = self.head()
        if "chunked" not in fields.get("transfer-encoding", ""):
            return status, fields, self._file.read(int(fields.get("content-length", "0")))
        body = b""
        while (size := self._file.readline()) and (count := int(size, 16)):
            body += self._file.read(count)
            self._file.readline()
        self._file.readline()
        return status, fields, body

    def event(self) -> str | None:
        """The data of the next event of a stream, whose head was read; None at the end of the connection's bytes."""
        while line := self._file.readline():
            if line.startswith(b"data: "):
                return line[6:].strip().decode()
            if line.strip() == b"0":
                return None
        return None

    def events(self) -> list[str]:
        """The data of all events that are left."""
        found = []
        while (event := self.event()) is not None:
            found.append(event)
        return found

    def rest(self, at_a_time: int = 1 << 16, pace: float = 0.0) -> tuple[bytes, bool]:
        """All bytes that are left, and whether the peer reset the connection instead of closing it.

        They are read `at_a_time`, with `pace` seconds between.
        """
        found = b""
        try:
            while data := self._file.read1(at_a_time):
                found += data
                time.sleep(pace)
        except ConnectionResetError:
            return found, True
        return found, False

    # ways of leaving

    def close(self) -> None:
        """FIN, or RST where the kernel has unread bytes."""
        self._gone = True
        self._file.close()
        self._socket.close()

    def reset(self) -> None:
        """RST."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def notify(self) -> None:
        """TLS's own goodbye, while the connection below stays open."""
        assert isinstance(self._socket, ssl.SSLSocket)
        self._socket.settimeout(5)
        with contextlib.suppress(OSError):  # what was still on its way to us, or the server's end
            self._socket.unwrap()

    def half_close(self) -> None:
        """FIN, while the client would still read."""
        self._socket.shutdown(socket.SHUT_WR)


Leave = Callable[[Wire], None]
LEAVING: dict[str, Leave] = {"close": Wire.close, "reset": Wire.reset, "half-close": Wire.half_close}


def post(
    path: str,
    body: dict[str, Any],
    label: str = "",
    declared: int | None = None,
    rank: int | None = None,
    key: str = "",
) -> bytes:
    """The bytes of a POST. `declared` is the length that the head tells, if another than the body's."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    head += f"content-length: {len(data) if declared is None else declared}\r\n"
    if key:
        head += f"authorization: Bearer {key}\r\n"
    if label:
        head += f"x-request-id: {label}\r\n"
    if rank is not None:
        head += f"x-data-parallel-rank: {rank}\r\n"
    return head.encode() + b"\r\n" + data


def request(path: str, prompt: str, max_tokens: int, *, model: str = "script", **more: Any) -> dict[str, Any]:
    """The body of a request of either route; greedy, unless it asks for several choices."""
    given: dict[str, Any] = {"messages": [{"role": "user", "content": prompt}]} if path == CHAT else {"prompt": prompt}
    return {"model": model, "max_tokens": max_tokens, "temperature": 0 if more.get("n", 1) == 1 else 1, **given, **more}


def piece_of(event: str) -> str:
    """The text of a chunk of either route."""
    choices = json.loads(event)["choices"]
    if not choices:
        return ""
    choice = choices[0]
    return str(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
