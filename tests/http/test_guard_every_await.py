"""A request is ended at every single await of its way through the guard; the counts add up each time."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.types import ASGIApp, Message

from tenure.api.dispatch import Dispatcher
from tenure.config import HttpLimits
from tenure.http.guard import Guard
from tenure.http.protocol import CONNECTION_KEY, Connection
from tenure.http.routes import RouteTable
from tenure.observe.counters import CounterSchema, SharedCounters
from tenure.observe.request_observer import RequestObserver
from tests.http.rig import Context, app_context, routes
from tests.tasks import Interrupted, run

ENDLESS = 500


class World:
    """A guard with a client in memory; every exchange with the client suspends."""

    def __init__(self, middleware: bool) -> None:
        limits = HttpLimits(keep_alive_interval=0.001)
        self.context = Context()
        table = RouteTable(routes(self.context))
        self.counters = SharedCounters.create(CounterSchema(workers=1, routes=table.work_paths()))
        app: ASGIApp = Dispatcher(app_context(self.counters), limits)
        if middleware:
            app = BaseHTTPMiddleware(app, dispatch=lambda request, call_next: call_next(request))
        self.guard = Guard(app, table, RequestObserver(self.counters.worker(0)), limits)
        self.connection = Connection(lambda: None)
        self.sent: list[Message] = []
        self._body = [b"{", b"}"]

    def request(self, path: str) -> Coroutine[Any, Any, None]:
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [(b"content-type", b"application/json"), (b"transfer-encoding", b"chunked")],
            "extensions": {CONNECTION_KEY: self.connection},
        }
        return self.guard(scope, self._receive, self._send)

    async def _receive(self) -> Message:
        await anyio.lowlevel.checkpoint()
        return {"type": "http.request", "body": self._body.pop(0), "more_body": bool(self._body)}

    async def _send(self, message: Message) -> None:
        await anyio.lowlevel.checkpoint()
        self.sent.append(message)
        await anyio.lowlevel.checkpoint()


async def interrupt_at(step: int, path: str, how: str, middleware: bool) -> bool:
    """Whether the request was still under way at `step`."""
    world = World(middleware)
    world.context.release.set()
    task = asyncio.current_task()
    assert task is not None
    interrupt = task.cancel if how == "cancelled" else world.connection.closed.set
    work = Interrupted(world.request(path), step, interrupt)
    cancelled = False
    try:
        await work
    except asyncio.CancelledError:
        cancelled = True
        task.uncancel()
    now = world.counters.snapshot()
    assert (now.arrivals, now.open, sum(now.outcomes.values())) == (1, 0, 1), now
    assert world.guard.snapshot().open == world.guard.snapshot().watchers == 0
    ended = {"cancelled": "unavailable", "gone": "client_cancelled"}[how]
    own = {"/stream": "ok", "/hello": "ok", "/fail/api/plain": "queue_full", "/fail/bug/stream": "engine_error"}[path]
    assert now.outcomes.keys() <= {ended, own}
    if not work.reached:
        assert now.outcomes.keys() == {own}
        assert sum(not message.get("more_body", True) for message in world.sent) == 1
    if how == "gone":
        assert not cancelled
        assert world.context.running == 0
    world.counters.close()
    return work.reached


@pytest.mark.parametrize("middleware", [False, True])
@pytest.mark.parametrize("how", ["cancelled", "gone"])
@pytest.mark.parametrize("path", ["/hello", "/stream", "/fail/api/plain", "/fail/bug/stream"])
def test_the_counts_add_up_wherever_a_request_is_ended(path: str, how: str, middleware: bool) -> None:
    async def scenario() -> None:
        for step in range(1, ENDLESS):
            if not await interrupt_at(step, path, how, middleware):
                assert step > 5
                return
        pytest.fail("the request never ended")

    run(scenario)
