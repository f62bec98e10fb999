"""HTTP that two servers in a row could read differently, and odd shapes that the standard wants to be understood."""

import anyio
import pytest

from tenure.config import HttpLimits
from tests.http.rig import serving
from tests.http.test_protocol import exchange
from tests.http.web_server import Reply, post
from tests.tasks import run

HEAD = b"POST /hello HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n"


@pytest.mark.parametrize(
    ("data", "word"),
    [
        (HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "Transfer-Encoding"),
        (HEAD + b"transfer-encoding: gzip\r\n\r\n", "Transfer-Encoding"),
        (HEAD + b"transfer-encoding: identity\r\n\r\n", "Transfer-Encoding"),
        (HEAD + b"transfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (CHUNKED + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (CHUNKED + b"transfer-encoding: identity\r\n\r\n0\r\n\r\n", "Transfer-Encoding"),
        (CHUNKED + b"content-length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n", "not both"),
        (HEAD + b"content-length: 6\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nX", "not both"),
        (CHUNKED.replace(b"1.1", b"1.0") + b"\r\n0\r\n\r\n", "HTTP/1.0"),
        (HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{} ", "HTTP/1.1"),
        (HEAD + b"content-length: 2, 3\r\n\r\n{} ", "HTTP/1.1"),
        (HEAD + b"content-length: +2\r\n\r\n{}", "HTTP/1.1"),
        (HEAD + b"content-length: 0x2\r\n\r\n{}", "HTTP/1.1"),
        (HEAD + b"content-length: 2 2\r\n\r\n{}", "HTTP/1.1"),
        (HEAD + b"content-length: " + b"9" * 30 + b"\r\n\r\n{}", "HTTP/1.1"),
        (HEAD + b"transfer-encoding : chunked\r\n\r\n0\r\n\r\n", "HTTP/1.1"),
        (HEAD + b"content-length\t: 2\r\n\r\n{}", "HTTP/1.1"),
        (HEAD + b"x: a\rtransfer-encoding: chunked\r\n\r\n", "HTTP/1.1"),
        (HEAD + b"x: a\x00b\r\ncontent-length: 2\r\n\r\n{}", "HTTP/1.1"),
        (HEAD + b"host: y\r\ncontent-length: 2\r\n\r\n{}", "HTTP/1.1"),
        (b"POST /hello HTTP/1.1\r\n folded: yes\r\nhost: x\r\n\r\n", "HTTP/1.1"),
        (b"POST /hello\r\nhost: x\r\n\r\n", "HTTP/1.1"),
        (b"POST /hello HTTP/1.1 HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1"),
        (b"POST /hel lo HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1"),
        (b"POST /hell\xc3\xb6 HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1"),
        (b"POST /hello http/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1"),
        (b"POST /hello HTTP/11\r\nhost: x\r\n\r\n", "HTTP/1.1"),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "HTTP/1.1"),
        (b"GET /health HTTP/0.9\r\n\r\n", "HTTP/1.1"),
        (b"\x00\r\n\r\n", "HTTP/1.1"),
        (b"\r\n\r\n \r\n\r\n", "HTTP/1.1"),
        (b"\r\rPOST /hello HTTP/1.1\r\nhost: x\r\n\r\n", "HTTP/1.1"),
    ],
)
def test_requests_that_are_refused(data: bytes, word: str) -> None:
    reply = exchange(data)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert word in reply.json()["error"]["message"]
    assert reply.headers["connection"] == "close"


@pytest.mark.parametrize(
    "body",
    [
        b"zz\r\n{}\r\n0\r\n\r\n",
        b"-2\r\n{}\r\n0\r\n\r\n",
        b"0x2\r\n{}\r\n0\r\n\r\n",
        b"2 2\r\n{}\r\n0\r\n\r\n",
        b"f" * 30 + b"\r\n{}",
        b"2\r\n{}X\r\n0\r\n\r\n",
        b"2\r\n{}0\r\n\r\n",
        b"2;" + b"x" * 70_000,
        b"2\r\n{}\r\n0\r\nbad trailer\r\n\r\n",
        b"2\r\n{}\r\n0\r\nx: " + b"y" * 70_000,
    ],
)
def test_chunks_that_are_none(body: bytes) -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(linger_timeout=0.2)) as rig:
            async with rig.client() as client:
                client.send(CHUNKED + b"\r\n" + body)
                reply = await client.reply()
                assert (reply.status, reply.code) == (400, "invalid_request")
                assert "chunks" in reply.json()["error"]["message"]
                assert await client.rest() == b""
            async with rig.client() as client:
                client.send(post("/hello"))
                assert (await client.reply()).status == 200
            await rig.idle(ok=1, invalid=1)

    run(scenario)


def answers(data: bytes, count: int = 1, *pieces: bytes, **outcomes: int) -> list[Reply]:
    """The answers to `data` and then `pieces`, over one connection that serves on afterwards."""
    replies = []

    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(data)
            for piece in pieces:
                with anyio.move_on_after(0.01):  # the pieces are to be read one by one
                    await client.reader.read(1)
                client.send(piece)
            replies.extend([await client.reply() for _ in range(count)])
            client.send(post("/hello"))
            assert (await client.reply()).status == 200
            await rig.idle(**outcomes)

    run(scenario)
    return replies


@pytest.mark.parametrize("ahead", [b"\r\n", b"\r\n\r\n\r\n", b"\n", b"\r\n" * 1000])
def test_empty_lines_ahead_of_a_request_are_skipped(ahead: bytes) -> None:
    """Old clients send one behind a body (RFC 9112, 2.2)."""
    (first,) = answers(ahead + post("/hello"), ok=2)
    assert first.status == 200
    first, second = answers(post("/hello") + ahead + post("/hello"), 2, ok=3)
    assert (first.status, second.status) == (200, 200)


def test_an_empty_line_in_pieces() -> None:
    (reply,) = answers(b"\r", 1, b"\n", b"\r", b"\n" + post("/hello"), ok=2)
    assert reply.status == 200


def test_nothing_but_empty_lines_does_not_keep_a_connection() -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(header_timeout=0.1)) as rig:
            async with rig.client() as client:
                client.send(b"\r\n")
                assert await client.rest() == b""
            async with rig.client() as client:
                client.send(post("/hello"))
                assert (await client.reply()).status == 200
                client.send(b"\r\n")
                assert await client.rest() == b""
            await rig.idle(ok=1)

    run(scenario)


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
        HEAD + b"content-length: 2, 2\r\n\r\n{}",
        HEAD + b"x-folded: a\r\n  b\r\n\tc\r\ncontent-length: 2\r\n\r\n{}",
        HEAD.replace(b"\r\n", b"\n") + b"content-length: 2\n\n{}",
        CHUNKED + b"\r\n2;name=value;other\r\n{}\r\n0\r\ntrailer: yes\r\n\r\n",
        CHUNKED + b"\r\n002\r\n{}\r\n000\r\n\r\n",
        CHUNKED.replace(b"chunked", b"CHUNKED") + b"\r\n2\r\n{}\r\n0\r\n\r\n",
        HEAD.replace(b"/hello", b"HTTP://other:80/hello") + b"content-length: 2\r\n\r\n{}",
        HEAD.replace(b"/hello", b"/hel%6co?a=b#c") + b"content-length: 2\r\n\r\n{}",
        HEAD + b"upgrade: websocket\r\nconnection: upgrade\r\ncontent-length: 2\r\n\r\n{}",
        HEAD + b"upgrade: h2c\r\nconnection: upgrade, http2-settings\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_requests_that_are_understood(data: bytes) -> None:
    (reply,) = answers(data, ok=2)
    assert reply.status == 200
    assert reply.json()["bytes"] == 2


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"OPTIONS * HTTP/1.1", 404),
        (b"GET * HTTP/1.1", 404),
        (b"CONNECT 127.0.0.1:80 HTTP/1.1", 404),
        (b"GET 127.0.0.1 HTTP/1.1", 404),
        (b"GET ftp://x/hello HTTP/1.1", 404),
        (b"GET /../health HTTP/1.1", 404),
        (b"GET /%00 HTTP/1.1", 404),
        (b"GET /%ff%fe HTTP/1.1", 404),
        (b"TRACE /health HTTP/1.1", 405),
        (b"get /health HTTP/1.1", 405),
        (b"X" * 300 + b" /health HTTP/1.1", 405),
    ],
)
def test_targets_and_methods_that_are_not_ours(line: bytes, status: int) -> None:
    (reply,) = answers(line + b"\r\nhost: x\r\n\r\n", ok=1)
    assert reply.status == status
    every_client = {"error", "detail", "message"}  # where the route is not known
    assert set(reply.json()) == (every_client if status == 404 else {"error"})
    assert len(reply.json()["error"]["message"]) < 400


def test_a_request_hidden_in_a_body_is_not_served() -> None:
    """Whatever a client puts into a body, and however it ends, it is no second request."""
    hidden = post("/hello", b"{}", x_request_id="hidden")

    async def scenario() -> None:
        async with serving() as rig:
            for data in (
                post("/hello", hidden),
                CHUNKED + b"\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden),
                post("/nowhere", hidden),
                post("/hello", hidden, content_type="text/plain"),
                post("/hello", hidden, content_length="2", transfer_encoding="chunked"),
                b"GET /health HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(hidden) + hidden,
            ):
                async with rig.client() as client:
                    client.send(data)
                    await client.reply()
                    client.half_close()
                    assert b"hidden" not in await client.rest()
            assert "hidden" not in rig.context.order

    run(scenario)
