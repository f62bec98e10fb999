"""The guard: the outermost application. It owns `receive` and the end of every request.

For each HTTP request it finds the route, counts the request in, checks it (key, labels, media type, length, body),
runs the application inside and one disconnect watcher in a task group, and counts the request out with its outcome.

Owner of: the visits that are open, hence the load; nobody else may count. A visit is made, opened and closed by one
`with` block (`_counted`) of the task that serves it, so a second or a late count has no representation.

The watcher waits for the connection's end where the protocol offers one (`tenure.connection`), else for
`http.disconnect`. When the client leaves first it cancels the visit's scope; what the application awaits in its own
shields (the engine's acknowledgement) is over before the request counts as `client_cancelled`.

Middleware inside gets a `receive` that replays the body and then waits for the visit to be over. Neither it nor
middleware outside is on the way between the client's leaving and the watcher."""

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from starlette.types import ASGIApp, Receive, Scope, Send

from tenure.api import errors, intake, json_shape
from tenure.api.account import account_of
from tenure.api.arrival import Terms, arrive, in_origin_form
from tenure.api.dispatch import inner_scope, replay
from tenure.api.errors import ApiError
from tenure.api.http_protocol import CONNECTION_KEY, Connection
from tenure.api.journal import Journal, Tally, Times
from tenure.api.outlet import Outlet
from tenure.api.recall import recall
from tenure.api.reporting import Reporter
from tenure.api.routes import Match, RouteTable
from tenure.api.visit import Stage, Visit
from tenure.config import HttpLimits, KeyRing
from tenure.process.ended import EndedRequests
from tenure.wire.messages import CancelledRequest, Recall

CANCEL_SECONDS = "cancel_seconds"
REQUEST_SECONDS = "request_seconds"
logger = logging.getLogger("tenure.api")


@dataclass(frozen=True, slots=True)
class GuardSnapshot:
    """Open work requests; disconnect watchers, and bytes of bodies, of all requests."""

    open: int
    watchers: int
    body_bytes: int
    draining: bool


class Guard:
    """ASGI application around `app`, which must end in a `Dispatcher`. It is given HTTP alone."""

    def __init__(
        self,
        app: ASGIApp,
        routes: RouteTable,
        tally: Tally,
        limits: HttpLimits,
        keys: KeyRing = KeyRing(),  # noqa: B008 -- frozen
        root_path: str = "",
        reporter: Reporter = Reporter(),  # noqa: B008 -- never changes
        request_timeout: float = 0.0,
    ) -> None:
        self._app = app
        self._routes = routes
        self._tally = tally
        self._reporter = reporter
        self._limits = limits
        self._keys = intake.digests(keys.keys)
        self._root_path = root_path
        self._request_timeout = request_timeout or None
        self._open: set[Visit] = set()
        self._ended = EndedRequests()
        self._body_bytes = 0
        self._watchers = 0
        self._draining: ApiError | None = None
        self._emptied: list[anyio.Event] = []

    def snapshot(self) -> GuardSnapshot:
        work = sum(visit.work for visit in self._open)
        return GuardSnapshot(
            open=work, watchers=self._watchers, body_bytes=self._body_bytes, draining=self._draining is not None
        )

    def drain(self, reason: str) -> None:
        """From now on new work is answered 503 with `reason`; what is open goes on."""
        self._draining = errors.engine_unavailable(reason)

    def end_open(self, reason: str) -> None:
        """End what is open as `unavailable`: 503, or an error event in a stream."""
        for visit in tuple(self._open):
            visit.fail(errors.engine_unavailable(reason))
            visit.scope.cancel()

    def recall(self, names: Recall) -> list[CancelledRequest]:
        """End what is named; returns it, and what is named and has ended before."""
        return recall(self._open, self._ended, names)

    async def wait_empty(self) -> None:
        """Return once no request of any kind is open."""
        if self._open:
            emptied = anyio.Event()
            self._emptied.append(emptied)
            await emptied.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope = in_origin_form(scope)
        match = self._match(scope["method"], scope["path"])
        connection: Connection | None = scope.get("extensions", {}).get(CONNECTION_KEY)
        visit = _open_visit(scope, match, self._tally)
        outlet = Outlet(visit, send, connection, self._limits.stall_timeout)
        with self._counted(visit):
            await self._serve(visit, match, scope, receive, outlet, connection)

    def _match(self, method: str, path: str) -> Match | None:
        """Find the route of a path, which a proxy has taken the prefix off or not."""
        match = self._routes.match(method, path)
        if match is None and self._root_path and path.startswith(self._root_path + "/"):
            return self._routes.match(method, path.removeprefix(self._root_path))
        return match

    @contextmanager
    def _counted(self, visit: Visit) -> Iterator[None]:
        """Count a visit in and out, whatever happens between."""
        self._open.add(visit)
        if visit.work:
            self._tally.arrive(visit.arrival.route.path)
        try:
            yield
        finally:
            self._open.remove(visit)
            self._body_bytes -= visit.body_bytes
            if visit.work:
                self._close_out(visit)
            if not self._open:
                while self._emptied:
                    self._emptied.pop().set()

    def _close_out(self, visit: Visit) -> None:
        account = account_of(visit, time.monotonic())
        visit.journal.close(account.outcome)
        self._tally.leave(account.route, account.model, account.outcome)
        self._tally.observe(REQUEST_SECONDS, account.seconds, account.model)
        if account.gone_at is not None:
            self._tally.observe(CANCEL_SECONDS, account.ended_at - account.gone_at, account.model)
        self._ended.note(CancelledRequest(visit.arrival.request_id, account.outcome, 0.0))
        self._reporter.ended(account)

    async def _serve(
        self,
        visit: Visit,
        match: Match | None,
        scope: Scope,
        receive: Receive,
        outlet: Outlet,
        connection: Connection | None,
    ) -> None:
        """Run the request and its watcher in the visit's scope; then say what could not be said inside it."""
        with visit.scope:
            async with anyio.create_task_group() as group:
                if connection is not None:
                    group.start_soon(self._watch_connection, visit, connection)
                try:
                    self._admit(visit, match)
                    await self._take_body(visit, receive)
                    if connection is None:
                        group.start_soon(self._watch_receive, visit, receive)
                    await self._app(inner_scope(scope, visit), replay(visit), outlet.send)
                except intake.ClientGone:
                    self._note_gone(visit, connection)
                except Exception as exc:
                    _record_failure(visit, exc)
                finally:
                    if connection is not None and connection.closed.is_set():
                        self._note_gone(visit, connection)  # the watcher may not have had its turn yet
                    group.cancel_scope.cancel()
        await outlet.settle()

    def _admit(self, visit: Visit, match: Match | None) -> None:
        """All that is checked of the head, in the documented order."""
        arrival, headers = visit.arrival, visit.arrival.headers
        if match is None:
            raise errors.route_not_found(arrival.path)
        if not match.allowed and not arrival.asks_options:
            raise errors.method_not_allowed(arrival.method, match.allow)
        owner = ""
        if not arrival.route.open_without_key and not arrival.asks_options:
            owner = intake.check_key(headers, self._keys)
        if arrival.label_refusal is not None:
            raise arrival.label_refusal
        timeout = intake.shorter(intake.read_timeout(headers), self._request_timeout)
        visit.terms = Terms(intake.read_rank(headers), timeout, owner)
        if visit.work and self._draining is not None:
            raise self._draining
        if arrival.route.body and not arrival.asks_options:
            intake.check_media_type(headers)
            intake.check_length(headers, self._limits.max_body_bytes)

    async def _take_body(self, visit: Visit, receive: Receive) -> None:
        if not visit.arrival.route.body or visit.arrival.asks_options:
            return
        hold = partial(self._hold, visit)
        visit.body = await intake.read_body(receive, self._limits, hold, visit.time_left())
        visit.body_complete = True
        self._reporter.received(visit)
        json_shape.check_shape(visit.body, self._limits)

    def _hold(self, visit: Visit, size: int) -> None:
        """Account for bytes of a body; they are let go of when the visit ends."""
        if self._body_bytes + size > self._limits.max_open_body_bytes:
            raise errors.too_many_bodies(self._limits.max_open_body_bytes)
        self._body_bytes += size
        visit.body_bytes += size

    async def _watch_connection(self, visit: Visit, connection: Connection) -> None:
        with self._watching():
            await connection.closed.wait()
            self._end_gone(visit, connection)

    async def _watch_receive(self, visit: Visit, receive: Receive) -> None:
        with self._watching():
            try:
                while (await receive())["type"] != "http.disconnect":
                    pass
            except Exception:
                logger.exception("request %s: receive failed; taken as a disconnect", visit.arrival.request_id)
            self._end_gone(visit, None)

    @contextmanager
    def _watching(self) -> Iterator[None]:
        self._watchers += 1
        try:
            yield
        finally:
            self._watchers -= 1

    def _end_gone(self, visit: Visit, connection: Connection | None) -> None:
        if visit.stage is not Stage.FINISHED:  # else the handler tidies up, and nobody waits for it
            self._note_gone(visit, connection)
            visit.scope.cancel()

    def _note_gone(self, visit: Visit, connection: Connection | None) -> None:
        if connection is not None and connection.refusal is not None:
            visit.note_refusal(connection.refusal)
        visit.leave(time.monotonic())


def _open_visit(scope: Scope, match: Match | None, tally: Tally) -> Visit:
    arrival = arrive(scope, match, time.monotonic())
    journal = Journal(tally, Times(arrival.received_at))
    return Visit(arrival, journal, work=arrival.route.work and not arrival.asks_options)


def _record_failure(visit: Visit, exc: Exception) -> None:
    known = exc if isinstance(exc, ApiError) else None
    if known is None:
        logger.error("request %s failed", visit.arrival.request_id, exc_info=exc)
    visit.fail(known or errors.internal_error())
