"""The guard: the outermost ASGI application. It owns `receive` and the end of every request.

For each HTTP request it finds the route, counts the request in, checks it (key, labels, media type, length, body),
runs the application inside and one disconnect watcher in a task group, and counts the request out with its outcome.

Owner of: the open exchanges, hence the load; nobody else may count. An exchange is opened and closed by one `with`
block (`_counted`) of the task that serves it, so none can be counted twice or late.

The watcher waits for the connection's end where the protocol offers one (`tenure.connection`), else for
`http.disconnect`. When the client leaves first it cancels the exchange's scope; shielded awaits of the application
(the engine's acknowledgement) end before the request counts as `client_cancelled`.

Middleware inside gets a `receive` that replays the body and then waits for the exchange to be over. No middleware,
inside or outside, can hide a disconnect from the watcher."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.config import HttpLimits, KeyRing
from tenure.http import errors, intake
from tenure.http.errors import ApiError
from tenure.http.exchange import Exchange, Observer, Stage, inner_scope, replay
from tenure.http.outlet import Outlet
from tenure.http.protocol import CONNECTION_KEY, Connection
from tenure.http.request_head import RequestOptions, in_origin_form, read_head
from tenure.http.routes import Match, RouteTable

logger = logging.getLogger("tenure.http")


@dataclass(frozen=True, slots=True)
class GuardSnapshot:
    """`open` counts work requests alone; `watchers` and `body_bytes` are those of all requests."""

    open: int
    watchers: int
    body_bytes: int
    draining: bool


class Guard:
    """ASGI application around `app`, which finds its exchange in the scope (`inner_scope`). For HTTP scopes alone."""

    def __init__(
        self,
        app: ASGIApp,
        routes: RouteTable,
        observer: Observer,
        limits: HttpLimits,
        keys: KeyRing = KeyRing(),  # noqa: B008 -- frozen
        request_timeout: float = 0.0,
        process: str = "00000000",
    ) -> None:
        self._app = app
        self._routes = routes
        self._observer = observer
        self._limits = limits
        self._keys = intake.digests(keys.keys)
        self._request_timeout = request_timeout or None
        self._process = process
        self._open: set[Exchange] = set()
        self._bodies = intake.BodyBudget(limits.max_open_body_bytes)
        self._watchers = 0
        self._draining: ApiError | None = None
        self._emptied: list[anyio.Event] = []

    def snapshot(self) -> GuardSnapshot:
        work = sum(exchange.work for exchange in self._open)
        return GuardSnapshot(
            open=work, watchers=self._watchers, body_bytes=self._bodies.held, draining=self._draining is not None
        )

    def drain(self, reason: str) -> None:
        """Answer new work with 503 and `reason` from now on; open requests go on."""
        self._draining = errors.engine_unavailable(reason)

    def end_open(self, reason: str) -> None:
        """End every open request as `unavailable`: 503, or an error event in a stream."""
        for exchange in self.open_exchanges:
            exchange.fail(errors.engine_unavailable(reason))
            exchange.scope.cancel()

    @property
    def open_exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges that have begun and are not over."""
        return tuple(self._open)

    async def wait_empty(self) -> None:
        """Return once no request of any kind is open."""
        if self._open:
            emptied = anyio.Event()
            self._emptied.append(emptied)
            await emptied.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = in_origin_form(scope)
        match = self._routes.match(scope["method"], scope["path"])
        connection: Connection | None = scope.get("extensions", {}).get(CONNECTION_KEY)
        exchange = Exchange(read_head(scope, match, self._process, time.monotonic()), intake.Body(self._bodies))
        outlet = Outlet(exchange, send, connection, self._limits.stall_timeout, self._closes_connections)
        with self._counted(exchange):
            await self._serve(exchange, match, scope, receive, outlet, connection)

    def _closes_connections(self) -> bool:
        return self._draining is not None or not self._limits.keep_alive_timeout

    @contextmanager
    def _counted(self, exchange: Exchange) -> Iterator[None]:
        """Count the exchange as open within the scope, and with its outcome at the end, also when this raises."""
        self._open.add(exchange)
        exchange.journal = self._observer.opened(exchange)
        try:
            yield
        finally:
            self._open.remove(exchange)
            exchange.body.let_go()
            self._observer.closed(exchange)
            if not self._open:
                while self._emptied:
                    self._emptied.pop().set()

    async def _serve(
        self,
        exchange: Exchange,
        match: Match | None,
        scope: Scope,
        receive: Receive,
        outlet: Outlet,
        connection: Connection | None,
    ) -> None:
        """Run the request and its watcher in the exchange's scope; then complete the response, if it is not."""
        with exchange.scope:
            async with anyio.create_task_group() as group:
                if connection is not None:
                    group.start_soon(self._watch_connection, exchange, connection)
                try:
                    self._admit(exchange, match)
                    await self._take_body(exchange, receive)
                    if connection is None:
                        group.start_soon(self._watch_receive, exchange, receive)
                    await self._app(inner_scope(scope, exchange), replay(exchange), outlet.send)
                except intake.ClientGone:
                    self._note_gone(exchange, connection)
                except Exception as exc:
                    _record_failure(exchange, exc)
                finally:
                    if connection is not None and connection.closed.is_set():
                        self._note_gone(exchange, connection)  # the watcher may not have had its turn yet
                    group.cancel_scope.cancel()
        exchange.ended.set()  # what is left is to tell a client, who may not read
        await outlet.settle()

    def _admit(self, exchange: Exchange, match: Match | None) -> None:
        """Check the head in the documented order and set `exchange.options`. Raises ApiError."""
        head, headers = exchange.head, exchange.head.headers
        if match is None:
            raise errors.route_not_found(head.path)
        if not match.allowed and not head.asks_options:
            raise errors.method_not_allowed(head.method, match.allow)
        owner = ""
        if not head.route.open_without_key and not head.asks_options:
            owner = intake.check_key(headers, self._keys)
        if head.label_refusal is not None:
            raise head.label_refusal
        timeout = intake.shorter(intake.read_timeout(headers), self._request_timeout)
        exchange.options = RequestOptions(intake.read_rank(headers), timeout, owner)
        if exchange.work and self._draining is not None:
            raise self._draining
        if head.route.body and not head.asks_options:
            intake.check_media_type(headers)
            intake.check_length(headers, self._limits.max_body_bytes)

    async def _take_body(self, exchange: Exchange, receive: Receive) -> None:
        if not exchange.head.route.body or exchange.head.asks_options:
            return
        await intake.read_body(receive, self._limits, exchange.body, exchange.time_left())
        self._observer.received(exchange)

    async def _watch_connection(self, exchange: Exchange, connection: Connection) -> None:
        with self._watching():
            await connection.closed.wait()
            self._end_gone(exchange, connection)

    async def _watch_receive(self, exchange: Exchange, receive: Receive) -> None:
        with self._watching():
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Exception:
                logger.exception("request %s: receive failed; taken as a disconnect", exchange.head.request_id)
            self._end_gone(exchange, None)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    def _end_gone(self, exchange: Exchange, connection: Connection | None) -> None:
        if exchange.stage is not Stage.FINISHED:  # else the handler tidies up, and nobody waits for it
            self._note_gone(exchange, connection)
            exchange.scope.cancel()

    def _note_gone(self, exchange: Exchange, connection: Connection | None) -> None:
        if connection is not None and connection.refusal is not None:
            exchange.note_refusal(connection.refusal)
        exchange.leave(time.monotonic())


def _record_failure(exchange: Exchange, exc: Exception) -> None:
    known = exc if isinstance(exc, ApiError) else None
    if known is None:
        logger.error("request %s failed", exchange.head.request_id, exc_info=exc)
    exchange.fail(known or errors.internal_error())
