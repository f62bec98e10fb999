"""The guard's way out: the one `send` through which a response leaves, and what is said when the application cannot."""

import contextlib
import logging
from collections.abc import Iterator

import anyio
from starlette.types import Message, Send

from tenure.api import errors
from tenure.api.errors import ApiError
from tenure.api.http_protocol import Connection
from tenure.api.visit import Stage, Visit
from tenure.outcomes import Outcome

logger = logging.getLogger("tenure.api")

_PART_BYTES = 64 * 1024


class Outlet:
    """Follows the response of one visit, adds the identifying headers, and bounds every write in time."""

    def __init__(self, visit: Visit, send: Send, connection: Connection | None, stall_timeout: float) -> None:
        self._visit = visit
        self._send = send
        self._connection = connection
        self._stall_timeout = stall_timeout

    async def send(self, message: Message) -> None:
        """The application's `send`."""
        visit = self._visit
        if message["type"] == "http.response.start":
            visit.status = message["status"]
            message = {**message, "headers": self._head(message)}
            visit.stage = Stage.STARTED
        for part in _parts(message):
            await self._write(part)
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if last and visit.gone_at is None and not self._left():
            visit.stage = Stage.FINISHED
            visit.over.set()

    async def settle(self) -> None:
        """After the application has ended: complete, break off or pretend, so that the connection is left in order."""
        visit = self._visit
        if not visit.decided:
            logger.error(
                "request %s: the application returned without completing its response", visit.arrival.request_id
            )
            visit.fail(errors.internal_error())
        if visit.stage is Stage.FINISHED:
            return
        with contextlib.suppress(ApiError):  # a client that stalls again: the connection is aborted by then
            await self._close_response(visit)

    async def _close_response(self, visit: Visit) -> None:
        if visit.error is None or self._left():
            await self._humour_middleware()
        elif visit.error.outcome is not Outcome.STALLED and visit.stage is Stage.OPEN:
            await self._whole(visit.error)
        elif visit.error.outcome is not Outcome.STALLED and visit.is_event_stream:
            event = visit.error.event()
            await self.send({"type": "http.response.body", "body": event, "more_body": False})
        elif self._connection is not None:
            self._connection.abort()

    async def _whole(self, error: ApiError) -> None:
        body = error.body(self._visit.arrival.route.dialect)
        fields = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        headers = [(name.encode(), value.encode("latin-1")) for name, value in fields.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": headers})
        await self.send({"type": "http.response.body", "body": body, "more_body": False})

    async def _humour_middleware(self) -> None:
        """Outer middleware takes an application that never answered for a broken one; the bytes reach nobody."""
        with anyio.move_on_after(self._stall_timeout), contextlib.suppress(Exception):
            if self._visit.stage is Stage.OPEN:
                await self._send({"type": "http.response.start", "status": 499, "headers": []})
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _head(self, message: Message) -> list[tuple[bytes, bytes]]:
        visit = self._visit
        headers = list(message.get("headers", []))
        visit.is_event_stream = any(
            name.lower() == b"content-type" and value.startswith(b"text/event-stream") for name, value in headers
        )
        if visit.arrival.label:
            headers.append((b"x-request-id", visit.arrival.label.encode("ascii")))
        if visit.work:
            headers.append((b"x-tenure-request-id", visit.arrival.request_id.encode()))
        if self._body_unread():
            headers.append((b"connection", b"close"))
        return headers

    def _body_unread(self) -> bool:
        headers = self._visit.arrival.headers
        has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
        return has_body and not self._visit.body_complete

    def _left(self) -> bool:
        return self._connection is not None and self._connection.closed.is_set()

    async def _write(self, message: Message) -> None:
        with anyio.move_on_after(self._stall_timeout) as scope:
            await self._send(message)
        if scope.cancelled_caught:
            stalled = errors.client_stalled()
            self._visit.fail(stalled)
            if self._connection is not None:
                self._connection.abort()
            raise stalled


def _parts(message: Message) -> Iterator[Message]:
    """A large body in parts, each of which waits until the client has taken most of what came before it, and an empty
    end. In one piece it would count as delivered while all of it is still here: whoever never reads would not be
    noticed, and whoever reads slowly would be cut off when the connection has been idle for long enough."""
    body = message.get("body", b"")
    if len(body) <= _PART_BYTES:
        yield message
        return
    for start in range(0, len(body), _PART_BYTES):
        yield {"type": message["type"], "body": body[start : start + _PART_BYTES], "more_body": True}
    yield {**message, "body": b""}
