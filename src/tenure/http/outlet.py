"""The guard's `send`: every response passes through it; it also writes the error when the application fails to."""

import contextlib
import logging
from collections.abc import Callable, Iterator

import anyio
import anyio.lowlevel
from starlette.types import Message, Send

from tenure.http import errors
from tenure.http.errors import ApiError
from tenure.http.exchange import Exchange, Stage
from tenure.http.protocol import Connection
from tenure.outcomes import Outcome

logger = logging.getLogger("tenure.api")

_PART_BYTES = 64 * 1024


class Outlet:
    """Sends the response of one exchange: tracks its stage, adds the id headers, and bounds every write in time."""

    def __init__(
        self,
        exchange: Exchange,
        send: Send,
        connection: Connection | None,
        stall_timeout: float,
        is_last: Callable[[], bool],
    ) -> None:
        """`is_last`: whether a response that begins now gets `Connection: close`."""
        self._exchange = exchange
        self._send = send
        self._connection = connection
        self._stall_timeout = stall_timeout
        self._is_last = is_last

    async def send(self, message: Message) -> None:
        """The ASGI `send` for the application. Raises ApiError when the client does not read in time."""
        exchange = self._exchange
        if message["type"] == "http.response.start":
            exchange.status = message["status"]
            message = {**message, "headers": self._head(message)}
            exchange.stage = Stage.STARTED
        for part in _parts(message):
            await self._write(part)
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if last and exchange.gone_at is None and not self._left():
            exchange.stage = Stage.FINISHED
            exchange.over.set()

    async def settle(self) -> None:
        """After the application has ended: send the error, end the stream, or abort the connection, as is needed."""
        exchange = self._exchange
        if not exchange.decided:
            logger.error(
                "request %s: the application returned without completing its response", exchange.head.request_id
            )
            exchange.fail(errors.internal_error())
        if exchange.stage is Stage.FINISHED:
            return
        with contextlib.suppress(ApiError):  # a client that stalls again: the connection is aborted by then
            await self._close_response(exchange)

    async def _close_response(self, exchange: Exchange) -> None:
        if exchange.error is None or self._left():
            await self._complete_for_middleware()
        elif exchange.error.outcome is not Outcome.STALLED and exchange.stage is Stage.OPEN:
            await self._whole(exchange.error)
        elif exchange.error.outcome is not Outcome.STALLED and exchange.is_event_stream:
            event = exchange.error.event()
            await self.send({"type": "http.response.body", "body": event, "more_body": False})
        elif self._connection is not None:
            self._connection.abort()

    async def _whole(self, error: ApiError) -> None:
        body = error.body(self._exchange.head.route.dialect)
        fields = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        headers = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _complete_for_middleware(self) -> None:
        """Complete the response of a client that has left: else outer middleware would raise."""
        with anyio.move_on_after(self._stall_timeout), contextlib.suppress(Exception):
            if self._exchange.stage is Stage.OPEN:
                await self._send({"type": "http.response.start", "status": 499, "headers": []})
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _head(self, message: Message) -> list[tuple[bytes, bytes]]:
        exchange = self._exchange
        headers = list(message.get("headers", []))
        exchange.is_event_stream = any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
        )
        if exchange.head.label:
            headers.append((b"x-request-id", exchange.head.label.encode("ascii")))
        if exchange.work:
            headers.append((b"x-tenure-request-id", exchange.head.request_id.encode()))
        if self._body_unread() or self._is_last():
            headers.append((b"connection", b"close"))
        return headers

    def _body_unread(self) -> bool:
        headers = self._exchange.head.headers
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        return has_body and not self._exchange.body.complete

    def _left(self) -> bool:
        return self._connection is not None and self._connection.closed.is_set()

    async def _write(self, message: Message) -> None:
        with anyio.move_on_after(self._stall_timeout) as scope:
            await self._send(message)
            if len(message.get("body", b"")) >= _PART_BYTES:
                await anyio.lowlevel.checkpoint()  # a client that reads fast lets nobody else have a turn
        if scope.cancelled_caught:
            stalled = errors.client_stalled()
            self._exchange.fail(stalled)
            if self._connection is not None:
                self._connection.abort()
            raise stalled


def _parts(message: Message) -> Iterator[Message]:
    """Split a large body, so that each part waits until the client has read most of the one before.

    In one part it would count as delivered while it is still buffered here: a client that never reads would not be
    noticed, and a slow one would be cut off by the keep-alive timeout.
    """
    body = message.get("body", b"")
    if len(body) <= _PART_BYTES:
        yield message
        return
    for start in range(0, len(body), _PART_BYTES):
        yield {"type": message["type"], "body": body[start : start + _PART_BYTES], "more_body": True}
    yield {**message, "body": b""}
