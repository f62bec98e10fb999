"""Middleware around and inside the guard hides no disconnect from a real engine (F02).

The API application runs in this process, so that middleware can be put around it; its engine is that of a server.
"""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass

import anyio
import pytest
import uvicorn
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp

from tenure.api.app import build_inner, route_table
from tenure.api.common.context import AppContext
from tenure.client import EngineClient, Fleet, Served
from tenure.config import ApiSettings, HttpLimits
from tenure.http.guard import Guard
from tenure.http.protocol import http_protocol
from tenure.observe.counters import CounterSchema, SharedCounters
from tenure.observe.reporting import RequestObserver
from tenure.prompts.text_model import load_text_model
from tenure.source import resolve_source
from tests.api.rig import RawClient, post, run
from tests.serving.server import ServerProcess
from tests.serving.wire import CHAT, COMPLETIONS, request


class Idle(BaseHTTPMiddleware):
    """Does nothing, which has been enough to hide every disconnect."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


def plain(app: ASGIApp) -> ASGIApp:
    return app


Wrap = Callable[[ASGIApp], ASGIApp]


STACKS: dict[str, tuple[Wrap, Wrap]] = {
    "none": (plain, plain),
    "inside": (Idle, plain),
    "outside": (plain, Idle),
    "both": (Idle, Idle),
}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stack", STACKS)
def test_a_real_engine_is_told(server: ServerProcess, path: str, stack: str) -> None:
    inside, outside = STACKS[stack]
    before = server.work()

    async def scenario() -> None:
        async with _front(server, inside, outside) as front:
            for stream in (False, True):
                async with front.client() as client:
                    body = json.dumps(request(path, f"{stack} {stream}", 30_000, stream=stream)).encode()
                    client.send(post(path, body, x_request_id="behind"))
                    if stream:
                        await client.until(b"data: ")
                    await front.until(lambda: front.engine.open_requests == 1)
                    client.reset()
                await front.until(lambda: front.guard.snapshot().open == 0)
                assert front.engine.open_requests == 0, "the guard closes when the engine has let go"
            assert front.counters.snapshot().outcomes == {"client_cancelled": 2}

    run(scenario)
    server.wait_at_rest()
    spent = server.work() - before
    assert spent.wasted == spent.computed < 2 * 30_000


@dataclass
class _Front:
    """An API application in this process."""

    port: int
    guard: Guard
    counters: SharedCounters
    engine: EngineClient

    @asynccontextmanager
    async def client(self) -> AsyncIterator[RawClient]:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.port))
        try:
            yield client
        finally:
            client.close()

    async def until(self, condition: Callable[[], bool]) -> None:
        with anyio.fail_after(30):
            while not condition():  # noqa: ASYNC110 -- what is waited for is plain state, which tells nobody
                await anyio.sleep(0.002)


class _Uvicorn(uvicorn.Server):
    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def _front(server: ServerProcess, inside: Wrap, outside: Wrap) -> AsyncIterator[_Front]:
    limits, table = HttpLimits(), route_table()
    engine = EngineClient(server.engine_socket("script"), worker=1)
    schema = CounterSchema(workers=1, routes=table.work_paths(), models=("script",))
    with closing(SharedCounters.create(schema)) as counters:
        inner = inside(build_inner(_context(server, engine, counters), table, limits))
        guard = Guard(inner, table, RequestObserver(counters.worker(0)), limits)
        config = uvicorn.Config(outside(guard), http=http_protocol(limits), ws="none", log_config=None, lifespan="off")
        web, listener = _Uvicorn(config), socket.create_server(("127.0.0.1", 0))
        front = _Front(listener.getsockname()[1], guard, counters, engine)
        async with anyio.create_task_group() as connection:
            connection.start_soon(engine.run)
            async with anyio.create_task_group() as group:
                group.start_soon(web.serve, [listener])
                try:
                    with anyio.fail_after(30):
                        await engine.wait_ready()
                    await front.until(lambda: web.started)
                    yield front
                finally:
                    web.should_exit = True
            connection.cancel_scope.cancel()


def _context(server: ServerProcess, engine: EngineClient, counters: SharedCounters) -> AppContext:
    return AppContext(
        fleet=Fleet([Served(("script",), [engine], ("generate",))]),
        texts={"script": load_text_model("script", resolve_source(server.sources["script"]), {}, 0)},
        settings=ApiSettings(version="test"),
        counts=counters.snapshot,
        epoch="",
        started_at=0.0,
    )
