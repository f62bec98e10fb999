"""What the guard refuses and in which order, what it adds to responses, and how failures look to a client."""

import anyio
import pytest

from tenure.config import HttpLimits
from tests.http.rig import BULK, LIMITS, serving, talk
from tests.http.web_server import post
from tests.tasks import run, until


def test_an_answer_carries_the_label_and_an_id_of_our_own() -> None:
    first, second, bare, open_route = talk(
        post("/hello", x_request_id="a b/u"),
        post("/hello", x_request_id="a b/u"),
        post("/hello"),
        b"GET /health HTTP/1.1\r\nhost: x\r\nx-request-id: probe\r\n\r\n",
        ok=3,
    )
    assert first.headers["x-request-id"] == second.headers["x-request-id"] == "a b/u"
    assert first.json()["id"] == first.headers["x-tenure-request-id"] != second.headers["x-tenure-request-id"]
    assert "x-request-id" not in bare.headers
    assert len(bare.headers["x-tenure-request-id"]) == 32
    assert open_route.headers["x-request-id"] == "probe"
    assert "x-tenure-request-id" not in open_route.headers


@pytest.mark.parametrize("label", ["x" * 257, "tab\there", "\u00e9", "x" * 20_000])
def test_an_unsafe_label_is_refused_and_never_reflected(label: str) -> None:
    (reply,) = talk(post("/hello", x_request_id=label), invalid=1)
    assert (reply.status, reply.code) == (400, "invalid_request")
    assert "x-request-id" not in reply.headers
    assert label not in reply.body.decode()


def test_the_rank_is_an_integer_or_refused() -> None:
    good, bad, huge = talk(
        post("/hello", x_data_parallel_rank="-3"),
        post("/hello", x_data_parallel_rank="1.5"),
        post("/hello", x_data_parallel_rank="9" * 5000),
        ok=1,
        invalid=2,
    )
    assert good.json()["rank"] == -3
    assert bad.status == huge.status == 400


def test_routes_keys_and_media_types_are_checked_in_order() -> None:
    wrong_everything = post("/nowhere", content_type="text/plain", content_length="99999999")[:-2]
    replies = talk(
        wrong_everything,
        post("/hello", content_type="text/plain", content_length="99999999")[:-2],
        post("/hello", content_type="text/plain", content_length="99999999", authorization="Bearer k")[:-2],
        post("/hello", content_type="-", authorization="Bearer k"),
        post("/hello", content_length="99999999", authorization="Bearer k")[:-2],
        post("/hello", content_type="Application/JSON ; charset=utf-8", x_api_key="k"),
        b"PUT /hello HTTP/1.1\r\nhost: x\r\n\r\n",
        b"OPTIONS /hello HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /things/org/name HTTP/1.1\r\nhost: x\r\n\r\n",
        keys=("other", "k"),
        ok=1,
        invalid=5,
    )
    assert [reply.status for reply in replies] == [404, 401, 415, 415, 413, 200, 405, 204, 200, 401]
    codes = [reply.code for reply in replies if reply.status >= 400]
    assert codes == [
        "route_not_found",
        "invalid_api_key",
        "unsupported_media_type",
        "unsupported_media_type",
        "request_too_large",
        "method_not_allowed",
        "invalid_api_key",
    ]
    assert replies[6].headers["allow"] == "POST"
    assert str(LIMITS.max_body_bytes) in replies[4].json()["error"]["message"]


@pytest.mark.parametrize("credential", ["Bearer", "Bearer ", "Bearer kk", "Basic k", "k", "Bearer \u00e9", "bearer x"])
def test_a_wrong_credential_is_refused(credential: str) -> None:
    (reply,) = talk(post("/hello", authorization=credential), keys=("k",), invalid=1)
    assert (reply.status, reply.code) == (401, "invalid_api_key")
    assert reply.headers["www-authenticate"] == "Bearer"


def test_a_connection_lives_on_when_the_body_was_read_and_ends_when_not() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/fail/api/plain", b"{}"))
            assert (await client.reply()).status == 429
            client.send(post("/read", b"[" * 65 + b"]" * 65))
            deep = await client.reply()
            assert (deep.status, deep.code) == (400, "invalid_request")
            rig.context.release.set()
            client.send(post("/read", b"[" * 64 + b"]" * 64))
            assert (await client.reply()).json() == {"waited": True}
            client.send(post("/nowhere", b"", content_length="0"))
            assert (await client.reply()).status == 404
            client.send(post("/hello", content_type="text/csv"))
            refused = await client.reply()
            assert (refused.status, refused.headers["connection"]) == (415, "close")
            assert await client.rest() == b""
            await rig.idle(ok=1, invalid=2, queue_full=1)

    run(scenario)


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    head = post("/hello", b"", content_length="-", transfer_encoding="chunked")
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def test_chunked_bodies_are_whole_or_refused() -> None:
    good, large = talk(chunked(b"{", b"}"), chunked(*[b" " * 50_000] * 5), ok=1, invalid=1)
    assert good.json()["bytes"] == 2
    assert (large.status, large.code) == (413, "request_too_large")


def test_a_client_that_sends_far_too_much_reads_why_it_is_refused() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/hello", b" " * 8_000_000))
            reply = await client.reply()
            assert (reply.status, reply.code) == (413, "request_too_large")
            await rig.idle(invalid=1)

    run(scenario)


def test_a_body_that_does_not_come_is_a_timeout() -> None:
    limits = HttpLimits(body_timeout=0.05, linger_timeout=0.2)
    (reply,) = talk(post("/hello", b"{}", content_length="10"), limits=limits, invalid=1)
    assert (reply.status, reply.code) == (408, "request_timeout")


def test_a_body_that_is_not_there_in_the_requests_own_time_is_late() -> None:
    slow = post("/hello", b"{}", content_length="10", x_request_timeout="0.05")
    (reply,) = talk(slow, limits=HttpLimits(linger_timeout=0.2), deadline=1)
    assert (reply.status, reply.code) == (504, "deadline_exceeded")


@pytest.mark.parametrize(
    ("kind", "status", "code", "outcome"),
    [
        ("bug", 500, "internal_error", "engine_error"),
        ("api", 429, "queue_full", "queue_full"),
        ("remote", 500, "kv_lost", "kv_lost"),
        ("group", 504, "deadline_exceeded", "deadline"),
    ],
)
@pytest.mark.parametrize("when", ["plain", "early"])
def test_a_failure_before_the_first_byte_has_its_own_status(
    kind: str, status: int, code: str, outcome: str, when: str
) -> None:
    (reply,) = talk(post(f"/fail/{kind}/{when}"), **{outcome: 1})
    assert (reply.status, reply.code) == (status, code)
    assert "secret" not in reply.body.decode()
    assert ("retry-after" in reply.headers) == (status == 429)
    assert reply.headers["content-type"] == "application/json"


def test_a_failure_in_a_stream_is_one_event_and_no_done() -> None:
    replies = talk(*[post(f"/fail/{kind}/stream") for kind in ("bug", "remote")], engine_error=1, kv_lost=1)
    for reply, code in zip(replies, ("internal_error", "kv_lost"), strict=True):
        assert reply.status == 200
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        events = reply.body.split(b"\n\n")
        assert events[0] == b"data: {}"
        assert events[1].startswith(b'data: {"error":')
        assert code.encode() in events[1]
        assert events[2:] == [b""]


def test_a_bug_is_logged_with_its_traceback_and_the_server_lives(caplog: pytest.LogCaptureFixture) -> None:
    replies = talk(post("/fail/bug/plain"), post("/unfinished/plain"), post("/hello"), engine_error=2, ok=1)
    assert [reply.status for reply in replies] == [500, 500, 200]
    failed = [record for record in caplog.records if record.name == "tenure.api" and record.exc_info]
    assert "secret detail" in str(failed[0].exc_info)


def test_a_bug_after_the_response_leaves_the_response_alone(caplog: pytest.LogCaptureFixture) -> None:
    (reply,) = talk(post("/fail/bug/after"), ok=1)
    assert reply.status == 200
    assert "RuntimeError" in caplog.text


def test_a_stream_left_without_an_end_is_a_failure() -> None:
    (reply,) = talk(post("/unfinished/stream"), engine_error=1)
    assert b"internal_error" in reply.body
    assert b"[DONE]" not in reply.body


def test_keep_alive_comments_fill_the_silence() -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(keep_alive_interval=0.01)) as rig, rig.client() as client:
            client.send(post("/stream"))
            await client.until(b": keep-alive\n\n\r\n")
            await client.until(b": keep-alive\n\n\r\n")
            rig.context.release.set()
            await client.until(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            client.send(post("/fail/api/early"))
            assert (await client.reply()).status == 429
            await rig.idle(ok=1, queue_full=1)

    run(scenario)


def test_a_client_that_stops_reading_is_cut_off() -> None:
    async def scenario() -> None:
        async with serving(limits=HttpLimits(stall_timeout=0.1)) as rig, rig.client() as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(post("/flood"))
            await rig.idle_after_arrival(stalled=1)

    run(scenario)


def test_a_client_that_does_not_read_a_whole_answer_is_cut_off() -> None:
    """It was not delivered, so it does not count as answered, and is not kept for ever."""

    async def scenario() -> None:
        async with serving(limits=HttpLimits(stall_timeout=0.1)) as rig, rig.client() as client:
            client.writer.transport.pause_reading()  # type: ignore[attr-defined]
            client.send(post("/bulk"))
            await rig.idle_after_arrival(stalled=1)

    run(scenario)


def test_a_large_answer_arrives_whole() -> None:
    (reply,) = talk(post("/bulk"), ok=1)
    assert reply.body == BULK
    assert int(reply.headers["content-length"]) == len(BULK)


def test_a_draining_server_refuses_new_work_and_finishes_the_old() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as old, rig.client() as new:
            old.send(post("/stream"))
            await old.until(b'{"n":2}\n\n')
            rig.guard.drain("The server is shutting down.")
            new.send(post("/hello"))
            refused = await new.reply()
            assert (refused.status, refused.code) == (503, "engine_unavailable")
            assert int(refused.headers["retry-after"]) >= 1
            with anyio.move_on_after(0.01):
                await rig.guard.wait_empty()
                pytest.fail("a stream is open")
            rig.context.release.set()
            with anyio.fail_after(30):
                await rig.guard.wait_empty()
            await old.until(b"data: [DONE]\n\n")
            await rig.guard.wait_empty()
            await rig.idle(ok=1, unavailable=1)

    run(scenario)


def test_work_that_is_ended_by_the_server_says_so() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as waiting, rig.client() as streaming:
            waiting.send(post("/wait"))
            streaming.send(post("/stream"))
            await streaming.until(b'{"n":2}\n\n')
            await until(lambda: rig.context.running == 2)
            rig.guard.end_open("The server is shutting down.")
            reply = await waiting.reply()
            assert (reply.status, reply.code) == (503, "engine_unavailable")
            end = await streaming.until(b"0\r\n\r\n")
            assert b'data: {"error":' in end
            assert b"[DONE]" not in end
            await rig.idle(unavailable=2)

    run(scenario)


def test_pipelined_requests_are_answered_in_order() -> None:
    async def scenario() -> None:
        async with serving() as rig, rig.client() as client:
            client.send(post("/wait", x_request_id="first") + post("/hello", b"{ }", x_request_id="second"))
            await until(lambda: rig.context.running == 1)
            client.send(post("/hello", x_request_id="third"))
            with anyio.move_on_after(0.02):
                await client.reader.read(1)
                pytest.fail("an answer came before its turn")
            rig.context.release.set()
            labels = [(await client.reply()).headers["x-request-id"] for _ in range(3)]
            assert labels == rig.context.order == ["first", "second", "third"]
            await rig.idle(ok=3)

    run(scenario)


def test_the_access_log_has_one_line_per_work_request(caplog: pytest.LogCaptureFixture) -> None:
    talk(
        post("/hello", b'{"secret":1}', authorization="Bearer hush", x_request_id='"quoted"'),
        post("/hello", content_type="text/plain"),
        b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n",
        keys=("hush",),
        ok=1,
        invalid=1,
    )
    lines = [record.getMessage() for record in caplog.records if record.name == "tenure.access"]
    assert len(lines) == 2
    assert r'label="\"quoted\"" route=/hello model=tiny status=200 outcome=ok' in lines[0]
    assert "status=401 outcome=invalid" in lines[1]
    assert "secret" not in caplog.text
    assert "hush" not in caplog.text
