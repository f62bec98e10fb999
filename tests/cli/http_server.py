"""A small HTTP server in threads, whose answers a test writes by hand."""

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

_WITHIN = 10.0


class Exchange:
    """One request, and the means to answer it."""

    def __init__(self, connection: socket.socket, head: str, body: bytes) -> None:
        request_line, *lines = head.split("\r\n")
        self.method, self.path, _ = request_line.split(" ")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self._body = body
        self._connection = connection

    @property
    def json(self) -> Any:
        return json.loads(self._body)

    def reply(self, status: int, content: bytes, media_type: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} X\r\ncontent-type: {media_type}\r\ncontent-length: {len(content)}\r\n\r\n"
        self._connection.sendall(head.encode() + content)

    def begin_stream(self) -> None:
        self._connection.sendall(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )

    def event(self, data: str) -> None:
        chunk = f"data: {data}\n\n".encode()
        self._connection.sendall(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")

    def piece(self, text: str) -> None:
        self.event(json.dumps({"choices": [{"index": 0, "delta": {"content": text}}]}))

    def end_stream(self) -> None:
        self._connection.sendall(b"0\r\n\r\n")

    def cut(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)

    def wait_closed(self) -> bool:
        """Whether the client closes the connection in time."""
        with suppress(ConnectionResetError):
            return self._connection.recv(1) == b""
        return True


Script = Callable[[Exchange], None]


class HttpServer:
    """Hands request after request to the scripts, in order; the last script goes on for ever."""

    def __init__(self, scripts: tuple[Script, ...]) -> None:
        self.requests: list[Exchange] = []
        self.errors: list[BaseException] = []
        self._scripts = list(scripts)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.settimeout(_WITHIN)
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                while (exchange := self._read(connection)) is not None:
                    self.requests.append(exchange)
                    script = self._scripts.pop(0) if len(self._scripts) > 1 else self._scripts[0]
                    script(exchange)
            except OSError:
                return  # the client, or the test, has ended the connection
            except BaseException as error:
                self.errors.append(error)

    def _read(self, connection: socket.socket) -> Exchange | None:
        data = b""
        while b"\r\n\r\n" not in data:
            more = connection.recv(65536)
            if not more:
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        exchange = Exchange(connection, head.decode("latin-1"), b"")
        length = int(exchange.headers.get("content-length", "0"))
        while len(body) < length:
            body += connection.recv(65536)
        return Exchange(connection, head.decode("latin-1"), body)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._threads[0].join()
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join()


@contextmanager
def http_server(*scripts: Script) -> Iterator[HttpServer]:
    server = HttpServer(scripts)
    try:
        yield server
    finally:
        server.close()
    assert server.errors == []


def answer(*pieces: str) -> Script:
    """A whole streamed answer."""

    def script(exchange: Exchange) -> None:
        exchange.begin_stream()
        for piece in pieces:
            exchange.piece(piece)
        exchange.event('{"choices": [], "usage": {"total_tokens": 3}}')
        exchange.event("[DONE]")
        exchange.end_stream()

    return script


def page(content: bytes, status: int = 200) -> Script:
    return lambda exchange: exchange.reply(status, content)
