"""A walk over the whole route table with the real guard: work is counted once, watched once and ended once; nothing
else is counted. A new work route needs an example body here."""

import json
import logging
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field

import anyio
import pytest

from tenure.api.app import build_app, route_table
from tenure.checkpoints.profile import ModelProfile, Scoring
from tenure.client.engine import client_left
from tenure.config import HttpLimits
from tenure.http.routes import Route
from tenure.http.web_server import web_server
from tenure.observe.counters import WORK_PATHS, CounterSchema, SharedCounters
from tenure.observe.request_observer import RequestObserver
from tenure.outcomes import Outcome
from tenure.wire.messages import Submit
from tests.api.generation_rig import ByteTokenizer, FakeEngine, FakeHandle, Rig, say_hello
from tests.api.pooling_rig import LABELS, SIZE, answers, classify, embed
from tests.http.web_server import RawClient, WebServer, post
from tests.tasks import run, until

ALL = ModelProfile(
    tasks=("generate", "embed", "token_embed", "score", "classify"),
    scoring=Scoring.BI_ENCODER,
    embedding_size=SIZE,
    labels=LABELS,
)
RERANK = {"query": "q", "documents": ["a", {"text": "b"}]}
EXAMPLES = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": ["a", "b"]},
    "/v1/embed": {"texts": ["a"]},
    "/v2/embed": {"texts": ["a"]},
    "/pooling": {"input": "a", "task": "embed"},
    "/classify": {"input": "a"},
    "/score": {"queries": "q", "documents": ["a", "b"]},
    "/v1/score": {"queries": "q", "documents": ["a", "b"]},
    "/rerank": RERANK,
    "/v1/rerank": RERANK,
    "/v2/rerank": RERANK,
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [104, 105]},
}
"""A body that the route answers with 200."""

TABLE = route_table()
WORK = [(route, method) for route in TABLE.routes if route.work for method in route.methods]
REST = [(route, method) for route in TABLE.routes if not route.work for method in route.methods]
ALIASES = (("/score", "/v1/score"), ("/rerank", "/v1/rerank", "/v2/rerank"), ("/health", "/ping"))


def name(value: object) -> str:
    return value.path if isinstance(value, Route) else str(value)


class HeldEngine(FakeEngine):
    """Admits nothing until it is released."""

    def __init__(self) -> None:
        super().__init__(_script)
        self.release = anyio.Event()

    @asynccontextmanager
    async def open(self, submit: Submit, cause: Callable[[], Outcome] = client_left) -> AsyncIterator[FakeHandle]:
        async with super().open(submit, cause) as handle:
            await self.release.wait()
            yield handle


def _script(submit: Submit):
    if submit.pooling is None:
        return say_hello(submit)
    return answers(embed if "embed" in submit.pooling.task else classify)(submit)


@dataclass
class Walk(WebServer):
    """Every route, with one engine."""

    engine: HeldEngine = field(default_factory=HeldEngine)

    async def idle(self, **outcomes: int) -> None:
        await super().idle(**outcomes)
        assert self.engine.open_scopes == 0


@asynccontextmanager
async def walking() -> AsyncIterator[Walk]:
    limits, engine = HttpLimits(), HeldEngine()
    context = Rig(profile=ALL, tokenizer=ByteTokenizer(True, True), engine=engine).context
    schema = CounterSchema(workers=1, routes=TABLE.work_paths(), models=("tiny",))
    with closing(SharedCounters.create(schema)) as counters:
        guard = build_app(context, RequestObserver(counters.worker(0)), limits)
        walk = Walk(guard, counters, web_server(guard, limits), engine=engine)
        async with walk.listening():
            try:
                yield walk
            finally:
                engine.release.set()


def request_of(route: Route, method: str) -> bytes:
    """A request that the route answers with 200 if it is work."""
    assert not route.work or route.path in EXAMPLES, f"{route.path} has no example body in this file"
    path = re.sub(r"\{.*?\}", "tiny", route.path)
    if route.body:
        assert method == "POST"
        return post(path, json.dumps(EXAMPLES.get(route.path, {})).encode())
    return f"{method} {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode()


@pytest.mark.parametrize(("route", "method"), WORK, ids=name)
def test_work_is_counted_while_it_is_done(route, method):
    async def scenario():
        async with walking() as walk, walk.client() as client:
            assert walk.counts().open == 0
            client.send(request_of(route, method))
            await until(lambda: walk.engine.open_scopes == walk.guard.snapshot().watchers == 1)
            assert walk.counts().open == 1
            assert walk.guard.snapshot().open == 1
            walk.engine.release.set()
            reply = await client.reply()
            assert reply.status == 200, reply.body
            await walk.idle(ok=1)
            assert len(walk.engine.submitted) == 1, "one request of the engine"

    run(scenario)


@pytest.mark.parametrize(
    "leave", [RawClient.close, RawClient.reset, RawClient.half_close], ids=lambda how: how.__name__
)
@pytest.mark.parametrize(("route", "method"), WORK, ids=name)
def test_a_client_that_leaves_ends_its_work_once(route, method, leave, caplog):
    async def scenario():
        async with walking() as walk, walk.client() as client:
            client.send(request_of(route, method))
            await until(lambda: walk.engine.open_scopes == 1)
            assert walk.counts().open == 1
            leave(client)
            await walk.idle(client_cancelled=1)

    caplog.set_level(logging.INFO, "tenure.access")
    run(scenario)
    [line] = [record.getMessage() for record in caplog.records if record.name == "tenure.access"]
    assert f"route={route.path} " in line
    assert "status=499 outcome=client_cancelled" in line


@pytest.mark.parametrize(("route", "method"), REST, ids=name)
def test_what_is_no_work_is_not_counted(route, method):
    async def scenario():
        async with walking() as walk, walk.client() as client:
            client.send(request_of(route, method))
            reply = await client.reply()
            assert reply.status < 500, reply.body
            assert walk.counts().open == 0
            await walk.idle()

    run(scenario)


def test_all_processes_count_the_same_routes() -> None:
    assert TABLE.work_paths() == WORK_PATHS


@pytest.mark.parametrize("paths", ALIASES, ids="=".join)
def test_aliases_are_the_same_handler(paths):
    handlers = {id(route.handler) for route in TABLE.routes if route.path in paths}
    assert len(handlers) == 1
    assert len([route for route in TABLE.routes if route.path in paths]) == len(paths)
