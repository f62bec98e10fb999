"""Bytes that are not a proper request: answered in JSON, in bounded time, and the server goes on."""

import asyncio
import logging
import os
import socket
import time
from typing import Any

import pytest

from tenure.config import HttpLimits
from tests.http.rig import serving
from tests.http.web_server import RawClient, Reply, post
from tests.tasks import LOOPS, run, until


def told_in_every_way(reply: Reply) -> bool:
    """Whether clients of any route find why: also those of rerank, which read `detail` or `message`."""
    body = reply.json()
    return bool(body["error"]["message"] == body["detail"] == body["message"])


def logged(caplog: pytest.LogCaptureFixture) -> tuple[int, str, str]:
    """Status, outcome and code of the one work request that was logged."""
    [record] = [record for record in caplog.records if record.name == "tenure.access"]
    fields: dict[str, Any] = record.__dict__["fields"]
    return fields["status"], fields["outcome"], fields["code"]


def exchange(data: bytes, limits: HttpLimits | None = None) -> Reply:
    """The answer to `data`, after checking that the connection is closed behind it and that the server still works."""
    replies: list[Reply] = []

    async def scenario() -> None:
        async with serving(limits=limits or HttpLimits()) as rig:
            async with rig.client() as client:
                client.send(data)
                replies.append(await client.reply())
                assert await client.rest() == b""
            async with rig.client() as client:
                client.send(post("/hello"))
                assert (await client.reply()).status == 200
            await rig.idle(ok=1)

    run(scenario)
    return replies[0]


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\nbad header\r\n\r\n",
        b"GET  /health HTTP/1.1\r\nhost: x\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nhost: x\r\ncontent-length: banana\r\n\r\n",
        b"nonsense\r\n\r\n",
        b"POST /hello HTTP/1.1\r\nhost: x\r\nx: \x00\r\n\r\n",
    ],
)
def test_malformed_requests_get_the_envelope(data: bytes) -> None:
    reply = exchange(data)
    assert told_in_every_way(reply)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert reply.headers["content-type"] == "application/json"
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize("end", [b"\r\n\r\n", b""])
def test_headers_over_the_size_limit(end: bytes) -> None:
    reply = exchange(b"GET /health HTTP/1.1\r\nhost: x\r\nx-big: " + b"a" * 100_000 + end)
    assert (reply.status, reply.code) == (431, "headers_too_large")
    assert "65536" in reply.json()["error"]["message"]
    assert told_in_every_way(reply)


def test_a_target_over_the_size_limit() -> None:
    reply = exchange(b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n")
    assert (reply.status, reply.code) == (431, "headers_too_large")


def test_too_many_headers() -> None:
    reply = exchange(b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 256 + b"\r\n")
    assert (reply.status, reply.code) == (431, "headers_too_large")


def test_a_header_that_never_ends_is_a_timeout() -> None:
    reply = exchange(b"GET /health HTTP/1.1\r\nhost:", HttpLimits(header_timeout=0.1))
    assert (reply.status, reply.code) == (408, "request_timeout")
    assert told_in_every_way(reply)


def test_a_header_that_never_ends_on_a_reused_connection() -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(header_timeout=0.1)) as rig, rig.client() as client:
            client.send(post("/hello") + b"POST /hel")
            assert (await client.reply()).status == 200
            late = await client.reply()
            assert (late.status, late.code) == (408, "request_timeout")
        async with serving(limits=HttpLimits(header_timeout=0.1)) as rig, rig.client() as client:
            client.send(post("/hello"))
            assert (await client.reply()).status == 200
            client.send(b"P")
            assert (await client.reply()).status == 408

    run(scenario)


def test_a_connection_that_says_nothing_is_closed_silently() -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(header_timeout=0.05)) as rig, rig.client() as client:
            assert await client.rest() == b""

    run(scenario)


def test_the_header_time_does_not_run_while_a_request_is_served() -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(header_timeout=0.05, keep_alive_interval=0.06)) as rig:
            async with rig.client() as client:
                client.send(post("/stream"))
                await client.until(b"keep-alive")
                rig.context.release.set()
                await client.until(b"[DONE]")
            await rig.idle(ok=1)

    run(scenario)


def test_a_malformed_chunk_is_the_callers_fault(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/hello", b"", content_length="-", transfer_encoding="chunked"))
            await until(lambda: rig.guard.snapshot().open == 1)
            client.send(b"zz\r\n")
            reply = await client.reply()
            assert (reply.status, reply.code) == (400, "invalid_request")
            assert told_in_every_way(reply)
            assert await client.rest() == b""
            await rig.idle(invalid=1)

    run(scenario)
    assert logged(caplog) == (400, "invalid", "invalid_request")


def test_garbage_after_a_request_is_refused_in_its_turn() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/wait") + b"\x00\x01garbage\r\n\r\n")
            await until(lambda: rig.context.running == 1)
            rig.context.release.set()
            assert (await client.reply()).status == 200
            assert (await client.reply()).status == 400
            await rig.idle(ok=1)

    run(scenario)


def test_expect_continue_is_asked_for_only_when_the_body_is_wanted() -> None:
    async def scenario() -> None:
        async with serving() as rig:
            async with rig.client() as client:
                client.send(post("/hello", b"", content_length="2", expect="100-continue"))
                assert b"100" in await client.until(b"\r\n\r\n")
                client.send(b"{}")
                assert (await client.reply()).status == 200
            async with rig.client() as client:
                client.send(post("/hello", b"", content_length="2", expect="100-continue", content_type="text/css"))
                assert (await client.reply()).status == 415
            await rig.idle(ok=1, invalid=1)

    run(scenario)


def test_connections_with_unread_answers_are_given_up() -> None:
    """A refused client that sends for ever is cut off after the time it has for reading."""

    async def scenario() -> None:
        async with serving(limits=HttpLimits(linger_timeout=0.05)) as rig, rig.client() as client:
            client.send(post("/hello", b"x", content_length="50000000"))
            assert (await client.reply()).status == 413
            await until(lambda: not rig.server.server_state.connections)

    run(scenario)


def test_answers_that_nobody_reads_are_given_up() -> None:
    """A connection that is to be closed does not wait for ever until its client has read what was sent."""

    async def scenario() -> None:
        async with serving(limits=HttpLimits(linger_timeout=0.05)) as rig:
            async with rig.client() as client:
                client.send(post("/hello"))
                assert (await client.reply()).status == 200
                (connection,) = rig.server.server_state.connections
                connection.transport.write(b"x" * 20_000_000)  # far more than the kernel takes
                connection.shutdown()
                await until(lambda: not rig.server.server_state.connections)
            await rig.idle(ok=1)

    run(scenario)


def test_a_body_in_crumbs_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/hello", b"", content_length="-", transfer_encoding="chunked"))
            client.send(b"1\r\n \r\n" * 2000)
            assert (await client.reply()).status == 400
            await rig.idle(invalid=1)

    run(scenario)
    assert logged(caplog) == (400, "invalid", "invalid_request")


def test_a_body_in_a_thousand_small_chunks_is_served() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/hello", b"", content_length="-", transfer_encoding="chunked"))
            client.send(b"1\r\n \r\n" * 998 + b"2\r\n{}\r\n0\r\n\r\n")
            assert (await client.reply()).status == 200
            await rig.idle(ok=1)

    run(scenario)


def test_a_target_may_name_scheme_and_host() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(b"GET http://127.0.0.1:80/health HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.reply()).status == 200
            client.send(b"GET http://127.0.0.1 HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await client.reply()).status == 404

    run(scenario)


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset, RawClient.half_close])
def test_leaving_in_the_middle_of_a_header_leaves_nothing(leave: object) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(b"POST /hel")
            await until(lambda: len(rig.server.server_state.connections) == 1)
            assert callable(leave)
            leave(client)
            await until(lambda: not rig.server.server_state.connections)
            await rig.idle()

    run(scenario)


def ask_unseen(client: RawClient) -> None:
    """Send a request that reaches the server's socket at once, without a turn of the event loop."""
    sock: socket.socket = client.writer.get_extra_info("socket")
    os.write(sock.fileno(), post("/hello"))


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_that_is_there_when_the_idle_time_ends_is_served(loop: str) -> None:
    """It comes in the same turn of a busy event loop, before the connection is closed."""

    async def scenario() -> None:
        async with serving(limits=HttpLimits(keep_alive_timeout=0.1)) as rig, rig.client() as client:
            client.send(post("/hello"))
            for _ in range(3):
                assert (await client.reply()).status == 200
                asyncio.get_running_loop().call_later(0.05, ask_unseen, client)
                time.sleep(0.2)  # noqa: ASYNC251 -- the event loop is to be late, for both timers
            assert (await client.reply()).status == 200
            assert await client.rest() == b"", "then it is closed"
            await rig.idle(ok=4)

    run(scenario, loop)


@pytest.mark.parametrize("loop", LOOPS)
def test_a_request_that_is_there_when_the_server_ends_is_served(loop: str) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client, rig.client() as idle:
            for one in (client, idle):
                one.send(post("/hello"))
                assert "connection" not in (await one.reply()).headers
            rig.guard.drain("the server is shutting down")
            ask_unseen(client)
            for connection in list(rig.server.server_state.connections):
                connection.shutdown()
            reply = await client.reply()
            assert (reply.status, reply.headers["connection"]) == (503, "close")
            assert await client.rest() == await idle.rest() == b""
            await rig.idle(ok=2, unavailable=1)

    run(scenario, loop)


def test_the_last_answer_on_a_connection_says_so() -> None:
    """Where it is known: the server drains, keeps nothing alive, or has not read what was sent."""

    async def scenario() -> None:
        async with serving(limits=HttpLimits(keep_alive_timeout=0)) as rig, rig.client() as client:
            client.send(post("/hello"))
            assert (await client.reply()).headers["connection"] == "close"
            assert await client.rest() == b""
        async with serving() as rig, rig.client() as client, rig.client() as streaming:
            client.send(post("/wait"))
            await until(lambda: rig.context.running == 1)
            rig.guard.drain("the server is shutting down")
            rig.context.release.set()
            assert (await client.reply()).headers["connection"] == "close"
            assert await client.rest() == b""
            streaming.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await streaming.reply()).headers["connection"] == "close"

    run(scenario)


def test_connections_are_kept_for_longer_than_proxies_keep_them() -> None:
    """They pool idle ones for up to 90 s: who closes first must be the proxy."""
    assert HttpLimits().keep_alive_timeout > 90


@pytest.mark.parametrize("offer", ["h2c", "websocket", "h2c, websocket", "TLS/1.0", "nonsense"])
def test_offers_of_other_protocols_are_passed_over(caplog: pytest.LogCaptureFixture, offer: str) -> None:
    """Java's client offers h2c with each first request; the answer is one of HTTP/1.1, and nothing is logged."""

    async def scenario() -> None:
        asks = {"connection": "Upgrade, HTTP2-Settings", "upgrade": offer, "http2_settings": "AAMAAABkAAQAAP__"}
        async with serving() as rig, rig.client() as client:
            client.send(post("/hello", **asks) + post("/hello", b'{"n": 2}', **asks))
            assert [(await client.reply()).json()["bytes"] for _ in range(2)] == [2, 8]
            client.send(post("/hello"))
            assert (await client.reply()).status == 200
            await rig.idle(ok=3)

    run(scenario)
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
