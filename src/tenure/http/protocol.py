"""One HTTP/1.1 connection: uvicorn's h11 protocol, with seven gaps closed.

1. *A pipelined request hides the client's leaving*: h11 pauses at the next request and uvicorn then stops reading, so
   neither FIN nor RST is seen. Here bytes that come while a request is being answered are kept, reading goes on, and a
   client that sends more than `max_trailing_bytes` ahead is cut off. What was kept is served afterwards, in order.
2. *Malformed HTTP* is answered with the JSON error envelope: 400, 431 (size and count; h11 bounds only heads that are
   still incomplete), and 408 for a head that is not complete in time, which uvicorn would wait for without end.
3. *A refused client must be able to read why*: closing with unread bytes resets the connection and discards the
   answer. `LingeringTransport.close` ends the writing side first and reads on for a bounded time.
4. *Shapes that two servers may read differently* are refused, so that a proxy in front cannot be tricked: a body with
   both a length and chunks, codings other than `chunked`. Empty lines ahead of a request are skipped, as they must be.
5. *The end of the connection* is an event that no middleware can take away: `scope["extensions"]["tenure.connection"]`.
6. *An idle connection is closed while a request is on its way*: what has reached the socket by then is read and served.
7. *An offer of another protocol* (`Upgrade`, as Java's client makes with h2c) is passed over without a warning.

A client that closes or half-closes its connection has left: `closed` is set at the FIN, and a response that is not yet
complete is dropped at once instead of waiting for its buffer to drain.

Owner: the event loop's callbacks of this connection; `Connection` is read by the guard.
"""

import asyncio
import contextlib
import json
import re
import socket
import struct
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from typing import Any, cast

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from tenure.config import HttpLimits
from tenure.http import errors
from tenure.http.errors import ApiError, Dialect

CONNECTION_KEY = "tenure.connection"
_EMPTY_LINES = re.compile(rb"(?:\r?\n)*")
_WRITE_BUFFER_BYTES = 64 * 1024
_DISCARD = struct.pack("ii", 1, 0)
"""Linger for no time at all: what is unsent when the socket is closed is thrown away."""
_SPARE_CONNECTIONS = 256
"""Beyond the limit, for those that are being told of it; what comes on top is dropped without a word."""

_FREE_CHUNKS = 1000
_LEAST_CHUNK_BYTES = 16
"""What the chunks of a body must hold on average, once there are more than a few."""


class Connection:
    """The connection of a request as the guard sees it: when it is closed, why it was refused, and `abort`."""

    def __init__(self, abort: Callable[[], None]) -> None:
        self.closed = asyncio.Event()
        """The client has closed or half-closed the connection, or it was lost."""
        self.refusal: ApiError | None = None
        """Set when the protocol itself has refused what the client sent, before it closes the connection."""
        self.abort = abort
        """Drop the connection at once, and what is unsent with it."""


class BoundedConnection(h11.Connection):
    """h11's parser with bounds on complete heads; it stores the error with which it refused a request."""

    def __init__(self, limits: HttpLimits) -> None:
        super().__init__(h11.SERVER, limits.max_header_bytes)
        self._limits = limits
        self._chunks = 0
        self._chunk_bytes = 0
        self.refusal: ApiError | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        in_body = self.their_state is h11.SEND_BODY
        if self.their_state is h11.IDLE and self._skip_empty_lines():
            return h11.NEED_DATA
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as exc:
            self.refusal = _refusal(exc, self._limits, in_body)
            raise
        if isinstance(event, h11.Request):
            self._chunks = self._chunk_bytes = 0
            self._check_head(event)
        elif isinstance(event, h11.Data):
            self._check_chunk(event)
        return event

    def _skip_empty_lines(self) -> bool:
        """Skip what clients may send ahead of a request (RFC 9112, 2.2); True when the last line is half there."""
        ahead = _EMPTY_LINES.match(self.trailing_data[0])
        if ahead is not None and ahead.end():
            self._receive_buffer.maybe_extract_at_most(ahead.end())
        return self.trailing_data[0] == b"\r"

    def _check_chunk(self, data: h11.Data) -> None:
        """Refuse a body in crumbs: a read full of them would keep the event loop busy for seconds."""
        self._chunks += data.chunk_start
        self._chunk_bytes += len(data.data)
        if self._chunks > _FREE_CHUNKS and self._chunk_bytes < self._chunks * _LEAST_CHUNK_BYTES:
            self.refusal = errors.malformed_request("The chunks of the request body are too small.")
            raise h11.RemoteProtocolError(self.refusal.message)

    def _check_head(self, head: h11.Request) -> None:
        size = len(head.target) + sum(len(name) + len(value) + 4 for name, value in head.headers)
        if len(head.headers) > self._limits.max_header_count:
            self.refusal = errors.headers_too_large(f"More than {self._limits.max_header_count} request headers.")
        elif size > self._limits.max_header_bytes:
            self.refusal = errors.headers_too_large(_head_limit(self._limits))
        else:
            self.refusal = _ambiguous(head)
        if self.refusal is not None:
            raise h11.RemoteProtocolError(self.refusal.message, error_status_hint=self.refusal.status)


class LingeringTransport:
    """A transport whose `close` reads on for a bounded time, so that a client that still sends can read the answer."""

    def __init__(self, transport: asyncio.Transport, protocol: "TenureProtocol") -> None:
        self._transport = transport
        self._protocol = protocol

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        return self._protocol.lingering or self._transport.is_closing()

    def close(self) -> None:
        if not self._protocol.linger():
            self._transport.close()


class TenureProtocol(H11Protocol):
    """See the module's text. Made by `http_protocol(limits)`."""

    conn: BoundedConnection

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        limits: HttpLimits,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._limits = limits
        self.timeout_keep_alive = limits.keep_alive_timeout  # type: ignore[assignment]  # any number will do
        self.conn = BoundedConnection(limits)
        self.connection = Connection(self._abort)
        self.app = cast(Any, self._serve)
        self.lingering = False
        self._timer: asyncio.TimerHandle | None = None
        """While a head is awaited, and while lingering or closing."""

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application, with its connection given to each request."""
        scope.setdefault("extensions", {})[CONNECTION_KEY] = self.connection
        await cast(ASGIApp, self.config.loaded_app)(scope, receive, send)

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, LingeringTransport(cast(asyncio.Transport, transport), self)))
        self._timer = self.loop.call_later(self._limits.header_timeout, self._head_too_slow)
        self.transport.set_write_buffer_limits(_WRITE_BUFFER_BYTES)  # under TLS it would be half a megabyte
        beyond = len(self.connections) - self._limits.max_connections
        if beyond > _SPARE_CONNECTIONS:
            self._abort()
        elif beyond > 0:
            self._refuse(errors.too_many_connections(self._limits.max_connections))

    def data_received(self, data: bytes) -> None:
        if self.lingering:
            return
        if self._request_is_in():
            self._unset_keepalive_if_required()
            self.conn.receive_data(data)
        else:
            super().data_received(data)
        self._after_reading()

    def eof_received(self) -> None:
        self.connection.closed.set()
        if self._answering:
            self._abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self.connection.closed.set()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.transport.is_closing():
            self._after_reading()

    def send_400_response(self, msg: str) -> None:
        """uvicorn's hook for a request that cannot be parsed."""
        self._refuse(self.conn.refusal or errors.malformed_request(msg))

    def _should_upgrade(self) -> bool:
        """uvicorn's hook: never. HTTP/1.1 is what is spoken here, and a server may ignore an offer (RFC 9110, 7.8)."""
        return False

    def timeout_keep_alive_handler(self) -> None:
        """uvicorn's hook: the connection has been idle for its time."""
        if not self._has_unread():
            super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        """uvicorn's hook: the server stops. Responses after the start of a drain carry `Connection: close` already."""
        if self._answering or not (self.conn.trailing_data[0] or self._has_unread()):
            super().shutdown()

    def _has_unread(self) -> bool:
        """Whether the client of an idle connection has sent unread bytes. If not, the writing side is shut at once.

        `close` alone takes effect in the next cycle of the event loop, and the client could send more before.
        """
        sock = self.transport.get_extra_info("socket")
        if sock is None or self.transport.is_closing():
            return False
        with contextlib.suppress(OSError, ValueError), socket.fromfd(sock.fileno(), sock.family, sock.type) as same:
            try:
                return bool(same.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
            except BlockingIOError:
                if self.transport.can_write_eof() and not self.transport.get_write_buffer_size():
                    same.shutdown(socket.SHUT_WR)
        return False

    def linger(self) -> bool:
        """Put off the close while the client may still be sending; returns whether that was done.

        Either way the time is bounded: a closed transport, too, waits for its client to read what was sent.
        """
        self._stop_timer()
        self._timer = self.loop.call_later(self._limits.linger_timeout, self._abort)
        mid_request = self.conn.their_state in (h11.SEND_BODY, h11.ERROR) or self.conn.refusal is not None
        if self.lingering or not mid_request or self.connection.closed.is_set():
            return False
        self.lingering = True
        self.flow.resume_reading()
        if self.transport.can_write_eof():  # not under TLS, where the client has to notice the answer's end itself
            self.transport.write_eof()
        return True

    # The request that is being answered

    @property
    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _request_is_in(self) -> bool:
        """Whether a request is complete and its answer is not: bytes that arrive now belong to a pipelined request."""
        return self._answering and self.conn.their_state not in (h11.IDLE, h11.SEND_BODY, h11.ERROR)

    def _after_reading(self) -> None:
        if self._request_is_in():
            self._stop_timer()
            self.flow.resume_reading()
            if len(self.conn.trailing_data[0]) > self._limits.max_trailing_bytes:
                self._abort()
        elif self.conn.their_state is not h11.IDLE:
            self._stop_timer()
        elif self._timer is None and (self.conn.trailing_data[0] or self.timeout_keep_alive_task is None):
            self._timer = self.loop.call_later(self._limits.header_timeout, self._head_too_slow)

    def _abort(self) -> None:
        if self._answering:
            self.cycle.disconnected = True  # uvicorn would take the application's return for a fault
            self.cycle.message_event.set()
        # A reset, and not a close: the kernel would hold what is unsent for a client that never reads it.
        sock = self.transport.get_extra_info("socket")
        if sock is not None:  # as it is once a transport under TLS has closed
            with contextlib.suppress(OSError, ValueError):  # it has gone already
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _DISCARD)
        self.transport.abort()

    # Refusals by the protocol itself

    def _head_too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if not self.conn.trailing_data[0]:
            self.transport.close()
            return
        limit = self._limits.header_timeout
        self._refuse(errors.request_timeout(f"The request headers were not complete within {limit:g} seconds."))

    def _refuse(self, refusal: ApiError) -> None:
        self.conn.refusal = refusal
        self._stop_timer()
        self._unset_keepalive_if_required()
        busy = self._answering
        if busy:
            self.connection.refusal = refusal
            self.cycle.disconnected = True
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write_refusal(refusal)
        self.transport.close()
        if busy:
            self.connection.closed.set()
            self.cycle.message_event.set()

    def _write_refusal(self, refusal: ApiError) -> None:
        body = refusal.body(Dialect.RERANK)  # the route is not known, and this form has what clients of any read
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
            *((name.encode(), value.encode()) for name, value in refusal.headers.items()),
        ]
        self.logger.info("refused a connection: %s", json.dumps(refusal.message))
        reason = HTTPStatus(refusal.status).phrase.encode()
        head = h11.Response(status_code=refusal.status, headers=headers, reason=reason)
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def http_protocol(limits: HttpLimits) -> type[asyncio.Protocol]:
    """The value for uvicorn's `http=` setting."""
    return cast(type[asyncio.Protocol], partial(TenureProtocol, limits=limits))


def _head_limit(limits: HttpLimits) -> str:
    return f"The request headers are larger than the limit of {limits.max_header_bytes} bytes."


def _ambiguous(head: h11.Request) -> ApiError | None:
    """The error for a head that h11 accepts but that is of another protocol or ambiguous; else None."""
    if not head.http_version.startswith(b"1."):
        return errors.malformed_request("The request is not HTTP/1.1 or HTTP/1.0.")
    names = {name for name, _ in head.headers}
    if b"transfer-encoding" not in names:
        return None
    if b"content-length" in names:
        return errors.malformed_request("A request has either a Content-Length or a Transfer-Encoding, not both.")
    if head.http_version < b"1.1":
        return errors.malformed_request("A request of HTTP/1.0 has no Transfer-Encoding.")
    return None


def _refusal(exc: h11.RemoteProtocolError, limits: HttpLimits, in_body: bool) -> ApiError:
    if in_body:
        return errors.malformed_request("The chunks of the request body are malformed.")
    if exc.error_status_hint == 431:
        return errors.headers_too_large(_head_limit(limits))
    if exc.error_status_hint == 501:
        return errors.malformed_request("The only Transfer-Encoding that is understood is `chunked`.")
    return errors.malformed_request("The request is not valid HTTP/1.1.")
