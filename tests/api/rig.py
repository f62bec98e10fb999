"""A real uvicorn server around the guard with small handlers, and a client that speaks raw bytes."""

import asyncio
import contextlib
import logging
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import uvicorn
import uvloop
from starlette.types import ASGIApp

from tenure.api.common.call import Call
from tenure.api.common.context import AppContext
from tenure.api.dispatch import Dispatcher
from tenure.client import Fleet, GenerationFailed
from tenure.config import ApiSettings, HttpLimits, KeyRing
from tenure.http import errors
from tenure.http.guard import Guard
from tenure.http.protocol import http_protocol
from tenure.http.routes import Route, RouteTable
from tenure.observe.counters import CounterSchema, CountersSnapshot, SharedCounters
from tenure.observe.reporting import RequestObserver
from tenure.outcomes import Outcome

LOOPS: dict[str, Callable[[], asyncio.AbstractEventLoop]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}
BULK = bytes(range(256)) * (1 << 16)
LIMITS = HttpLimits(header_timeout=5, body_timeout=5, max_body_bytes=200_000, stall_timeout=5, linger_timeout=2)


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


def routes(context: Context) -> tuple[Route, ...]:
    handlers = Handlers(context)
    return (
        Route("/health", ("GET",), handlers.hello, open_without_key=True),
        Route("/things/{id:path}", ("GET",), handlers.hello),
        Route("/hello", ("POST",), handlers.hello, work=True, body=True),
        Route("/wait", ("POST",), handlers.wait, work=True, body=True),
        Route("/stream", ("POST",), handlers.stream, work=True, body=True),
        Route("/flood", ("POST",), handlers.flood, work=True, body=True),
        Route("/bulk", ("POST",), handlers.bulk, work=True, body=True),
        Route("/fail/{kind}/{when}", ("POST",), handlers.fail, work=True, body=True),
        Route("/unfinished/{when}", ("POST",), handlers.unfinished, work=True, body=True),
    )


def app_context(counters: SharedCounters) -> AppContext:
    """A server without models."""
    return AppContext(
        fleet=Fleet(()),
        texts={},
        settings=ApiSettings(version="0.0"),
        counts=counters.snapshot,
        epoch="e1",
        started_at=0.0,
    )


@dataclass
class Rig:
    """A running server."""

    port: int
    guard: Guard
    counters: SharedCounters
    context: Context
    server: uvicorn.Server

    def counts(self) -> CountersSnapshot:
        return self.counters.snapshot()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so; fail after 30 s."""
        with anyio.fail_after(30):
            while not condition():  # noqa: ASYNC110 -- what is waited for is plain state, which tells nobody
                await anyio.sleep(0.002)

    async def idle(self, **outcomes: int) -> None:
        """Wait until nothing is open, and check that every request was counted once, as `outcomes` says."""
        await self.until(lambda: self.guard.snapshot().open == 0 and self.guard.snapshot().watchers == 0)
        now = self.counts()
        assert now.open == 0
        assert now.outcomes == outcomes
        assert now.arrivals == sum(outcomes.values())
        assert self.context.running == 0
        self.counters.audit()

    async def idle_after_arrival(self, **outcomes: int) -> None:
        """As `idle`, once the first request has arrived."""
        await self.until(lambda: self.counts().arrivals > 0)
        await self.idle(**outcomes)

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator["RawClient"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
        client = RawClient(reader, writer)
        try:
            yield client
        finally:
            client.close()


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    @property
    def code(self) -> str:
        return str(self.json()["error"]["code"])


class RawClient:
    """One connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def reply(self) -> Reply:
        """Read one whole response."""
        with anyio.fail_after(30):
            head = await self.reader.readuntil(b"\r\n\r\n")
            lines = head.decode("latin-1").split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
            if "transfer-encoding" in headers:
                body = await self._chunks()
            else:
                body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return Reply(int(lines[0].split(" ")[1]), headers, body)

    async def _chunks(self) -> bytes:
        body = b""
        while size := int(await self.reader.readline(), 16):
            body += (await self.reader.readexactly(size + 2))[:-2]
        await self.reader.readline()
        return body

    async def until(self, mark: bytes) -> bytes:
        with anyio.fail_after(30):
            return await self.reader.readuntil(mark)

    async def rest(self) -> bytes:
        """Read until the server closes."""
        with anyio.fail_after(30):
            return await self.reader.read(-1)

    def close(self) -> None:
        self.writer.close()

    def reset(self) -> None:
        """Leave with a RST."""
        sock: socket.socket = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    def half_close(self) -> None:
        self.writer.write_eof()


def post(path: str, body: bytes = b"{}", **headers: str) -> bytes:
    """The bytes of a POST; header names are written with underscores."""
    fields = {"host": "x", "content-type": "application/json", "content-length": str(len(body))}
    fields.update({name.replace("_", "-"): value for name, value in headers.items()})
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items() if value != "-")
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@contextlib.asynccontextmanager
async def serving(
    *,
    limits: HttpLimits = LIMITS,
    keys: tuple[str, ...] = (),
    root_path: str = "",
    tls: dict[str, Any] | None = None,
    inside: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    outside: Callable[[ASGIApp], ASGIApp] = lambda app: app,
    http: Any = None,
) -> AsyncIterator[Rig]:
    context = Context()
    table = RouteTable(routes(context), root_path)
    counters = SharedCounters.create(CounterSchema(workers=1, routes=table.work_paths(), models=("tiny",)))
    app, observer = inside(Dispatcher(app_context(counters), limits)), RequestObserver(counters.worker(0))
    guard = Guard(app, table, observer, limits, KeyRing(keys))
    config = uvicorn.Config(
        outside(guard),
        http=http or http_protocol(limits),
        ws="none",
        log_config=None,
        access_log=False,
        lifespan="off",
        **(tls or {}),
    )
    server = _Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        async with anyio.create_task_group() as group:
            group.start_soon(server.serve, [listener])
            rig = Rig(listener.getsockname()[1], guard, counters, context, server)
            await rig.until(lambda: server.started)
            try:
                yield rig
            finally:
                context.release.set()
                server.should_exit = True
    assert guard.snapshot().open == 0
    assert guard.snapshot().watchers == 0
    assert guard.snapshot().body_bytes == 0
    counters.close()


def run(scenario: Callable[[], Awaitable[None]], loop: str = "asyncio") -> None:
    """Run a scenario; a task that is left over at its end fails it."""
    logging.getLogger("tenure.access").setLevel(logging.INFO)

    async def guarded() -> None:
        before = asyncio.all_tasks()
        await scenario()
        await asyncio.sleep(0)
        left = asyncio.all_tasks() - before
        assert not left, left

    with asyncio.Runner(loop_factory=LOOPS[loop]) as runner:
        runner.run(guarded())
