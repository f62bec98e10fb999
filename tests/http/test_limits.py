"""What a client may ask for at most: each bound is answered by a 4xx that names it, and the server goes on."""

import contextlib
import socket
from collections.abc import AsyncIterator

import anyio
import pytest

from tenure.config import ApiSettings, HttpLimits
from tenure.process.system import allow_descriptors
from tests.api.generation_rig import Rig, assert_refused
from tests.api.pooling_rig import pooling_rig
from tests.http.rig import serving
from tests.http.web_server import RawClient, post
from tests.tasks import run, settle, until


@contextlib.asynccontextmanager
async def crowd(port: int, size: int, *starts: bytes) -> AsyncIterator[None]:
    """Connections that begin in one of some ways, and then say nothing more."""
    if allow_descriptors(2 * size + 500) < 2 * size + 500:
        pytest.skip("the system allows too few open files")
    with contextlib.ExitStack() as stack:
        for number in range(size):
            sock = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            sock.sendall(starts[number % len(starts)] if starts else b"")
            if number % 20 == 0:
                await settle()  # the server runs in this thread too, and a connection that it has no room for waits
        yield


def held(rig: Rig) -> int:
    return rig.app.snapshot().body_bytes


def test_a_body_beyond_the_limit() -> None:
    rig = Rig(limits=HttpLimits(max_body_bytes=1000))
    error = assert_refused(rig, rig.complete("x" * 1000), 413, "request_too_large")
    assert "limit of 1000 bytes" in error["message"]
    assert held(rig) == 0


def test_nesting_beyond_the_limit() -> None:
    rig = Rig(limits=HttpLimits(max_body_depth=3))
    error = assert_refused(rig, rig.complete([[[1]]]))
    assert "limit of 3 levels" in error["message"]
    assert rig.complete([[72]]).status_code == 200


def test_items_beyond_the_limit() -> None:
    rig = Rig(limits=HttpLimits(max_body_items=50))
    error = assert_refused(rig, rig.complete([72] * 60))
    assert "limit of 50 items" in error["message"]
    assert rig.complete([72] * 15).status_code == 200  # in two containers, of 16 each
    other = Rig(limits=HttpLimits(max_body_items=50))
    error = assert_refused(other, other.complete([[72], [73], [74]]))
    assert "counts as 16" in error["message"]


def test_choices_prompts_and_logprobs_beyond_the_limit() -> None:
    rig = Rig(settings=ApiSettings(version="0.0", max_n=2, max_prompts=3, max_logprobs=4))
    assert "from 1 to 2" in assert_refused(rig, rig.complete(n=3, temperature=1))["message"]
    assert "at most 3" in assert_refused(rig, rig.complete(["a"] * 4))["message"]
    assert "from 0 to 4" in assert_refused(rig, rig.complete(logprobs=5))["message"]
    assert "from 0 to 4" in assert_refused(rig, rig.complete(prompt_logprobs=5))["message"]
    assert rig.complete(["a"] * 3, n=2, temperature=1, logprobs=4).status_code == 200


def test_a_body_that_takes_too_long() -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(body_timeout=0.05, linger_timeout=0.1)) as rig:
            async with rig.client() as client:
                client.send(post("/hello", b"{", content_length="2"))
                reply = await client.reply()
                assert (reply.status, reply.code) == (408, "request_timeout")
                assert "within 0.05 seconds" in reply.json()["error"]["message"]
            await rig.idle(invalid=1)

    run(scenario)


def test_bodies_that_are_held_at_a_time() -> None:
    """What is being read and what handlers still have is counted; a body that is done with makes room."""

    async def scenario() -> None:
        limits = HttpLimits(max_open_body_bytes=100, linger_timeout=0.1)
        async with serving(limits=limits) as rig, rig.client() as slow, rig.client() as served:
            slow.send(post("/hello", b" " * 40, content_length="50"))
            served.send(post("/wait", b" " * 50))
            await until(lambda: rig.guard.snapshot().body_bytes == 90)
            async with rig.client() as one_too_many:
                one_too_many.send(post("/hello", b" " * 11))
                reply = await one_too_many.reply()
                assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "queue_full", "1")
                assert "limit of 100 bytes in all" in reply.json()["error"]["message"]
            async with rig.client() as small:
                small.send(post("/hello", b"{}"))
                assert (await small.reply()).status == 200
            slow.send(b" " * 10)
            assert (await slow.reply()).status == 200
            rig.context.release.set()
            assert (await served.reply()).status == 200
            await until(lambda: rig.guard.snapshot().body_bytes == 0)
            async with rig.client() as small:
                small.send(post("/hello", b" " * 90))
                assert (await small.reply()).status == 200
            await rig.idle(ok=4, queue_full=1)

    run(scenario)


@pytest.mark.parametrize("leave", [RawClient.close, RawClient.reset, RawClient.half_close])
def test_a_body_whose_client_leaves_is_let_go_of(leave: object) -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/hello", b" " * 40, content_length="50"))
            await until(lambda: rig.guard.snapshot().body_bytes == 40)
            assert callable(leave)
            leave(client)
            await until(lambda: rig.guard.snapshot().body_bytes == 0)
            await rig.idle(client_cancelled=1)

    run(scenario)


def test_connections_beyond_the_limit_are_told_so() -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(max_connections=2, linger_timeout=0.2)) as rig:
            async with rig.client() as first, rig.client():
                await until(lambda: len(rig.server.server_state.connections) == 2)
                async with rig.client() as third:
                    third.send(post("/hello"))
                    reply = await third.reply()
                    assert (reply.status, reply.code, reply.headers["retry-after"]) == (429, "queue_full", "1")
                    body = reply.json()
                    assert "limit of 2 open connections" in body["error"]["message"]
                    assert body["detail"] == body["message"] == body["error"]["message"]
                    assert await third.rest() == b""
                first.send(post("/hello"))
                assert (await first.reply()).status == 200
            await until(lambda: not rig.server.server_state.connections)
            async with rig.client() as later:
                later.send(post("/hello"))
                assert (await later.reply()).status == 200
            await rig.idle(ok=2)

    run(scenario)


def test_a_crowd_beyond_the_limit_is_dropped() -> None:
    """Even those that are told why are no more than so many at a time."""

    async def scenario() -> None:
        async with serving(limits=HttpLimits(max_connections=2)) as rig, crowd(rig.port, 400):
            await until(lambda: len(rig.server.server_state.connections) >= 258)
            with anyio.move_on_after(0.2):
                await until(lambda: len(rig.server.server_state.connections) > 258)
            assert len(rig.server.server_state.connections) == 258

    run(scenario)


SLOW = (b"", b"POST /hel", post("/hello", b"{", content_length="2"))
"""Silence, half a head, half a body."""


def test_two_thousand_slow_connections_do_not_keep_others_from_being_answered() -> None:
    async def scenario() -> None:
        limits = HttpLimits(header_timeout=90.0, body_timeout=90.0)
        async with serving(limits=limits) as rig, crowd(rig.port, 2000, *SLOW):
            await until(lambda: len(rig.server.server_state.connections) == 2000)
            for _ in range(20):
                async with rig.client() as client:
                    client.send(post("/hello"))
                    assert (await client.reply()).status == 200
            assert len(rig.server.server_state.connections) >= 2000
            await until(lambda: rig.counts().outcomes.get("ok") == 20)

    run(scenario)


def test_slow_connections_end_by_themselves_when_their_time_is_over() -> None:
    async def scenario() -> None:
        limits = HttpLimits(header_timeout=0.3, body_timeout=0.3, linger_timeout=0.2)
        async with serving(limits=limits) as rig, crowd(rig.port, 60, *SLOW):
            await until(lambda: rig.counts().outcomes.get("invalid") == 20)
            await until(lambda: not rig.server.server_state.connections)
            await until(lambda: rig.counts().open == 0)

    run(scenario)


def test_texts_beyond_the_limit() -> None:
    rig = pooling_rig(settings=ApiSettings(version="0.0", max_inputs=2))
    texts = ["a"] * 3
    for path, body in (
        ("/v1/embeddings", {"input": texts}),
        ("/v2/embed", {"texts": texts}),
        ("/pooling", {"input": texts}),
        ("/v1/score", {"queries": "q", "documents": texts}),
        ("/v1/rerank", {"query": "q", "documents": texts}),
    ):
        reply = rig.post(path, body)
        assert reply.status_code == 400, path
        assert "at most 2" in reply.json()["error"]["message"]
    assert rig.engine.submitted == []
    assert rig.post("/v1/embeddings", {"input": texts[:2]}).status_code == 200
