"""A client that leaves, in every way and at every moment, ends its request: once, counted, and with nothing left."""

import logging
from collections.abc import Callable

import anyio
import pytest
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from tests.http.rig import serving
from tests.http.web_server import RawClient, post
from tests.tasks import run, until

LEAVING: dict[str, Callable[[RawClient], None]] = {
    "close": RawClient.close,
    "reset": RawClient.reset,
    "half-close": RawClient.half_close,
}


class Idle(BaseHTTPMiddleware):
    """Does nothing, which has been enough to hide every disconnect."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)


def plain(app: ASGIApp) -> ASGIApp:
    return app


def one(app: ASGIApp) -> ASGIApp:
    return Idle(app)


def two(app: ASGIApp) -> ASGIApp:
    return Idle(Idle(app))


Wrap = Callable[[ASGIApp], ASGIApp]
STACKS: dict[str, tuple[Wrap, Wrap]] = {
    "bare": (plain, plain),
    "inside": (one, plain),
    "outside": (plain, one),
    "both": (one, one),
    "two": (two, two),
}


@pytest.fixture(params=["asyncio", "uvloop"])
def loop(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=LEAVING)
def leave(request: pytest.FixtureRequest) -> Callable[[RawClient], None]:
    return LEAVING[request.param]


@pytest.fixture(params=STACKS)
def stack(request: pytest.FixtureRequest) -> tuple[Wrap, Wrap]:
    return STACKS[request.param]


def test_before_the_first_byte(loop: str, leave: Callable[[RawClient], None], caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/wait", x_request_id="mine"))
            await until(lambda: rig.context.running == rig.guard.snapshot().watchers == 1)
            assert rig.guard.snapshot().open == 1
            assert rig.counts().open == 1
            leave(client)
            await rig.idle(client_cancelled=1)
            assert rig.context.cleaned == 1
            assert sum(rig.counts().histograms["cancel_seconds"]["tiny"].counts) == 1

    run(scenario, loop)
    lines = [record.getMessage() for record in caplog.records if record.name == "tenure.access"]
    assert len(lines) == 1
    assert 'label="mine" route=/wait model=tiny status=499 outcome=client_cancelled' in lines[0]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_in_the_middle_of_a_stream(loop: str, leave: Callable[[RawClient], None]) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/stream"))
            await client.until(b'{"n":2}\n\n')
            leave(client)
            await rig.idle(client_cancelled=1)

    run(scenario, loop)


def test_with_half_a_body(loop: str, leave: Callable[[RawClient], None]) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/hello", b"{}", content_length="1000"))
            await until(lambda: rig.guard.snapshot().open == 1)
            leave(client)
            await rig.idle(client_cancelled=1)

    run(scenario, loop)


def test_while_the_response_is_stuck_in_buffers(loop: str, leave: Callable[[RawClient], None]) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(post("/flood"))
            await until(lambda: rig.context.running == 1)
            leave(client)
            await rig.idle(client_cancelled=1)

    run(scenario, loop)


@pytest.mark.parametrize("how", ["same segment", "later", "in pieces", "with an upgrade header", "after close header"])
def test_with_a_second_request_pipelined(loop: str, leave: Callable[[RawClient], None], how: str) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            second = post("/wait")
            if how == "same segment":
                client.send(post("/wait") + second)
            elif how == "with an upgrade header":
                client.send(post("/wait", connection="upgrade", upgrade="h2c") + second)
            elif how == "after close header":
                client.send(post("/wait", connection="close"))
            else:
                client.send(post("/wait"))
            await until(lambda: rig.context.running == 1)
            for piece in [second[:30], second[30:]] if how != "same segment" else []:
                client.send(piece)
                await client.writer.drain()
                await anyio.sleep(0.01)  # in segments of their own
            leave(client)
            await rig.idle(client_cancelled=1)

    run(scenario, loop)


@pytest.mark.parametrize("segment", ["same", "later"])
def test_too_much_sent_ahead_cuts_the_connection(loop: str, segment: str) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            ahead = post("/wait", b" " * 150_000)
            client.send(post("/wait") + (ahead if segment == "same" else b""))
            if segment == "later":
                await until(lambda: rig.context.running == 1)
                client.send(ahead)
            await rig.idle_after_arrival(client_cancelled=1)
            with pytest.raises((ConnectionResetError, anyio.EndOfStream, EOFError)):
                await client.reader.readexactly(1)

    run(scenario, loop)


def test_under_any_stack_of_middleware(stack: tuple[Wrap, Wrap]) -> None:
    async def scenario() -> None:
        async with serving(inside=stack[0], outside=stack[1], keys=("k",)) as rig:
            for path, mark in (("/wait", None), ("/stream", b'{"n":2}\n\n')):
                async with rig.client() as client:
                    client.send(post(path, authorization="Bearer k"))
                    if mark is not None:
                        await client.until(mark)
                    await until(lambda: rig.context.running == rig.guard.snapshot().watchers == 1)
            await rig.idle(client_cancelled=2)
            rig.context.release.set()
            async with rig.client() as client:
                client.send(post("/stream", authorization="Bearer k"))
                assert (await client.reply()).body.endswith(b"data: [DONE]\n\n")
            await rig.idle(client_cancelled=2, ok=1)

    run(scenario)


def test_without_the_connection_extension() -> None:
    """Under another HTTP server the guard watches `receive`; still with one watcher and one count."""

    async def scenario() -> None:
        async with serving(http=H11Protocol, inside=one, outside=one) as rig:
            for path in ("/wait", "/stream"):
                async with rig.client() as client:
                    client.send(post(path))
                    await until(lambda: rig.context.running == rig.guard.snapshot().watchers == 1)
                    client.close()
            await rig.idle(client_cancelled=2)
            async with rig.client() as client:
                client.send(post("/hello"))
                assert (await client.reply()).status == 200
            await rig.idle(client_cancelled=2, ok=1)

    run(scenario)


def test_a_storm_leaves_the_load_at_zero(loop: str) -> None:
    async def scenario() -> None:
        async with serving() as rig:

            async def exchange(number: int) -> None:
                async with rig.client() as client:
                    client.send(post(("/wait", "/stream", "/hello")[number % 3]))
                    if number % 2:
                        await anyio.sleep(number % 7 / 1000)
                    (client.close, client.reset, client.half_close)[number % 3]()

            async with anyio.create_task_group() as group:
                for number in range(90):
                    group.start_soon(exchange, number)
            await until(lambda: not rig.server.server_state.connections and not rig.server.server_state.tasks)
            now = rig.counts()
            assert now.open == 0
            assert now.arrivals == sum(now.outcomes.values())
            assert now.outcomes.keys() <= {"ok", "client_cancelled"}
            assert rig.context.running == 0
            async with rig.client() as client:
                client.send(post("/hello"))
                assert (await client.reply()).status == 200

    run(scenario, loop)


def test_leaving_after_the_response_changes_nothing(loop: str) -> None:
    async def scenario() -> None:
        async with serving() as rig:
            async with rig.client() as client:
                client.send(post("/hello", connection="close"))
                assert (await client.reply()).status == 200
            async with rig.client() as client:
                client.send(post("/hello"))
                assert (await client.reply()).status == 200
            await rig.idle(ok=2)

    run(scenario, loop)


def test_a_middleware_that_fails_or_answers_itself_is_counted_once() -> None:
    def failing(app: ASGIApp) -> ASGIApp:
        async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["query_string"] == b"before":
                raise RuntimeError("before")
            if scope["query_string"] == b"refuse":
                await PlainTextResponse("no", status_code=403)(scope, receive, send)
                return
            await app(scope, receive, send)
            raise RuntimeError("after")

        return middleware

    async def scenario() -> None:
        async with serving(inside=failing) as rig:
            for query, status in (("before", 500), ("refuse", 403), ("after", 200)):
                async with rig.client() as client:
                    client.send(post(f"/hello?{query}"))
                    assert (await client.reply()).status == status
            await rig.idle(engine_error=1, invalid=1, ok=1)

    run(scenario)


def test_a_receive_that_fails_ends_the_request() -> None:
    """Without the connection extension, an outer layer whose `receive` breaks is taken for a client that left."""

    def breaking(app: ASGIApp) -> ASGIApp:
        async def middleware(scope: Scope, receive: Receive, send: Send) -> None:
            calls = 0

            async def broken() -> Message:
                nonlocal calls
                calls += 1
                if calls > 1 and scope["type"] == "http":
                    raise OSError("broken")
                return await receive()

            await app(scope, broken, send)

        return middleware

    async def scenario() -> None:
        async with serving(http=H11Protocol, outside=breaking) as rig, rig.client() as client:
            client.send(post("/wait"))
            await rig.idle_after_arrival(client_cancelled=1)

    run(scenario)
