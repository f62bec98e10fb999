"""A real server of small handlers behind the guard."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel
import msgspec
from starlette.types import ASGIApp

from tenure.api.common.body_reading import BodyReading
from tenure.api.common.call import Call
from tenure.api.common.context import AppContext
from tenure.api.dispatch import Dispatcher
from tenure.client import GenerationFailed, ServedModels
from tenure.config import ApiSettings, HttpLimits, KeyRing, TlsConfig
from tenure.http import errors
from tenure.http.guard import Guard
from tenure.http.routes import Route, RouteTable
from tenure.http.web_server import web_server
from tenure.observe.counters import CounterSchema, SharedCounters
from tenure.observe.request_observer import RequestObserver
from tenure.outcomes import Outcome
from tests.http.web_server import Reply, WebServer
from tests.tasks import run

ANYTHING = msgspec.json.Decoder()
BULK = bytes(range(256)) * (1 << 16)
LIMITS = HttpLimits(header_timeout=5, body_timeout=5, max_body_bytes=200_000, stall_timeout=5, linger_timeout=2)

Wrap = Callable[[ASGIApp], ASGIApp]
"""Middleware."""


def unchanged(app: ASGIApp) -> ASGIApp:
    """No middleware."""
    return app


@dataclass
class Context:
    """What the handlers record: who runs, who has begun to clean up, who is through."""

    running: int = 0
    cleaned: int = 0
    order: list[str] = field(default_factory=list)
    release: anyio.Event = field(default_factory=anyio.Event)
    """Set to let waiting handlers go on."""

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """As an engine's handle: the clean-up awaits an acknowledgement, shielded."""
        self.running += 1
        try:
            yield
        finally:
            with anyio.CancelScope(shield=True):
                await anyio.lowlevel.checkpoint()
                await anyio.sleep(0.001)
            self.running -= 1
            self.cleaned += 1


@dataclass(frozen=True)
class Handlers:
    """What the routes do."""

    context: Context

    async def hello(self, call: Call) -> None:
        call.model = "tiny"
        self.context.order.append(call.label)
        await call.respond_json({"bytes": len(call.body), "id": call.request_id, "rank": call.options.rank})

    async def read(self, call: Call) -> None:
        await call.read(type(None))
        await self.wait(call)

    async def wait(self, call: Call) -> None:
        call.model = "tiny"
        async with self.context.held():
            self.context.order.append(call.label)
            await self.context.release.wait()
            await call.respond_json({"waited": True})

    async def stream(self, call: Call) -> None:
        """Three events, then more when released."""
        async with self.context.held(), call.event_stream() as events:
            for number in range(3):
                await events.send(b'{"n":%d}' % number)
            await self.context.release.wait()
            await events.send(b'{"n":3}')
            await events.done()

    async def flood(self, call: Call) -> None:
        """More than any buffer takes."""
        async with self.context.held(), call.event_stream() as events:
            while True:
                await events.send(b"x" * 65536)

    async def bulk(self, call: Call) -> None:
        """As much in one piece."""
        async with self.context.held():
            await call.respond(200, BULK)

    async def fail(self, call: Call) -> None:
        """Fails in the way and at the moment that the path asks for."""
        failure = {
            "bug": RuntimeError("secret detail"),
            "api": errors.queue_full("no room"),
            "remote": GenerationFailed(Outcome.KV_LOST, "the cache is lost"),
            "group": ExceptionGroup("several", [errors.deadline_exceeded("late")]),
        }[call.path_params["kind"]]
        when = call.path_params["when"]
        if when == "stream":
            async with call.event_stream() as events:
                await events.send(b"{}")
                raise failure
        if when == "early":
            async with call.event_stream():
                raise failure
        if when == "after":
            await call.respond_json({})
        raise failure

    async def unfinished(self, call: Call) -> None:
        if call.path_params["when"] == "stream":
            async with call.event_stream() as events:
                await events.send(b"{}")


def read_nothing(body: bytes | bytearray, reading: BodyReading) -> None: ...


def read_json(body: bytes | bytearray, reading: BodyReading) -> None:
    reading.decode(body, ANYTHING)


def routes(context: Context) -> tuple[Route, ...]:
    handlers = Handlers(context)
    return (
        Route("/health", ("GET",), handlers.hello, open_without_key=True),
        Route("/things/{id:path}", ("GET",), handlers.hello),
        Route("/hello", ("POST",), handlers.hello, work=True, reader=read_nothing),
        Route("/read", ("POST",), handlers.read, work=True, reader=read_json),
        Route("/wait", ("POST",), handlers.wait, work=True, reader=read_nothing),
        Route("/stream", ("POST",), handlers.stream, work=True, reader=read_nothing),
        Route("/flood", ("POST",), handlers.flood, work=True, reader=read_nothing),
        Route("/bulk", ("POST",), handlers.bulk, work=True, reader=read_nothing),
        Route("/fail/{kind}/{when}", ("POST",), handlers.fail, work=True, reader=read_nothing),
        Route("/unfinished/{when}", ("POST",), handlers.unfinished, work=True, reader=read_nothing),
    )


def app_context(counters: SharedCounters) -> AppContext:
    """A server without models."""
    return AppContext(
        models=ServedModels(()),
        texts={},
        settings=ApiSettings(version="0.0"),
        counts=counters.snapshot,
        epoch="e1",
        started_at=0.0,
    )


@dataclass
class Rig(WebServer):
    """The handlers above behind the guard."""

    context: Context = field(default_factory=Context)

    async def idle(self, **outcomes: int) -> None:
        await super().idle(**outcomes)
        assert self.context.running == 0


@contextlib.asynccontextmanager
async def serving(
    *,
    limits: HttpLimits = LIMITS,
    keys: tuple[str, ...] = (),
    root_path: str = "",
    tls: TlsConfig | None = None,
    inside: Wrap = unchanged,
    outside: Wrap = unchanged,
    http: type[asyncio.Protocol] | None = None,
) -> AsyncIterator[Rig]:
    context = Context()
    table = RouteTable(routes(context), root_path)
    schema = CounterSchema(workers=1, routes=table.work_paths(), models=("tiny",))
    with contextlib.closing(SharedCounters.create(schema)) as counters:
        app = inside(Dispatcher(app_context(counters), limits))
        guard = Guard(app, table, RequestObserver(counters.worker(0)), limits, KeyRing(keys))
        server = web_server(outside(guard), limits, tls)
        if http is not None:
            server.config.http = http
        rig = Rig(guard, counters, server, context=context)
        async with rig.listening():
            try:
                yield rig
            finally:
                context.release.set()


def talk(
    *requests: bytes,
    limits: HttpLimits = LIMITS,
    keys: tuple[str, ...] = (),
    inside: Wrap = unchanged,
    outside: Wrap = unchanged,
    **outcomes: int,
) -> list[Reply]:
    """Send requests one after the other, each over a connection of its own; returns the replies.

    `outcomes` are all that must have been counted.
    """
    replies = []

    async def scenario() -> None:
        async with serving(limits=limits, keys=keys, inside=inside, outside=outside) as rig:
            for request in requests:
                async with rig.client() as client:
                    client.send(request)
                    replies.append(await client.reply())
            await rig.idle(**outcomes)

    run(scenario)
    return replies
