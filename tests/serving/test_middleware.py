"""Middleware around and inside the guard hides no disconnect from a real engine (F02).

The API application runs in this process, so that middleware can be put around it; its engine is that of a server.
"""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing

import anyio
import pytest
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response

from tenure.api.app import build_inner, route_table
from tenure.api.common.context import AppContext
from tenure.client import EngineClient, ServedModel, ServedModels
from tenure.config import ApiSettings, HttpLimits
from tenure.http.guard import Guard
from tenure.http.web_server import web_server
from tenure.observe.counters import CounterSchema, SharedCounters
from tenure.observe.request_observer import RequestObserver
from tenure.prompts.text_model import load_text_model
from tenure.source import resolve_source
from tests.http.rig import Wrap, unchanged
from tests.http.web_server import WebServer, post
from tests.serving.server import ServerProcess
from tests.serving.wire import CHAT, COMPLETIONS, request
from tests.tasks import run, until


class Idle(BaseHTTPMiddleware):
    """Does nothing, which has been enough to hide every disconnect."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


STACKS: dict[str, tuple[Wrap, Wrap]] = {
    "none": (unchanged, unchanged),
    "inside": (Idle, unchanged),
    "outside": (unchanged, Idle),
    "both": (Idle, Idle),
}


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("stack", STACKS)
def test_a_real_engine_is_told(server: ServerProcess, path: str, stack: str) -> None:
    inside, outside = STACKS[stack]
    before = server.work()

    async def scenario() -> None:
        async with _front(server, inside, outside) as (front, engine):
            for stream in (False, True):
                async with front.client() as client:
                    body = json.dumps(request(path, f"{stack} {stream}", 30_000, stream=stream)).encode()
                    client.send(post(path, body, x_request_id="behind"))
                    if stream:
                        await client.until(b"data: ")
                    await until(lambda: engine.open_requests == 1)
                    client.reset()
                await until(lambda: front.guard.snapshot().open == 0)
                assert engine.open_requests == 0, "the guard closes when the engine has let go"
            await front.idle(client_cancelled=2)

    run(scenario)
    server.wait_at_rest()
    spent = server.work() - before
    assert spent.wasted == spent.computed < 2 * 30_000


@asynccontextmanager
async def _front(server: ServerProcess, inside: Wrap, outside: Wrap) -> AsyncIterator[tuple[WebServer, EngineClient]]:
    """An API application in this process, and its connection to the engine."""
    limits, table = HttpLimits(), route_table()
    engine = EngineClient(server.engine_socket("script"), worker=1)
    schema = CounterSchema(workers=1, routes=table.work_paths(), models=("script",))
    with closing(SharedCounters.create(schema)) as counters:
        inner = inside(build_inner(_context(server, engine, counters), table, limits))
        guard = Guard(inner, table, RequestObserver(counters.worker(0)), limits)
        front = WebServer(guard, counters, web_server(outside(guard), limits))
        async with anyio.create_task_group() as connection:
            connection.start_soon(engine.run)
            async with front.listening():
                await engine.wait_ready()
                yield front, engine
            connection.cancel_scope.cancel()


def _context(server: ServerProcess, engine: EngineClient, counters: SharedCounters) -> AppContext:
    return AppContext(
        models=ServedModels([ServedModel(("script",), [engine], ("generate",))]),
        texts={"script": load_text_model("script", resolve_source(server.sources["script"]), {}, 0)},
        settings=ApiSettings(version="test"),
        counts=counters.snapshot,
        epoch="",
        started_at=0.0,
    )
