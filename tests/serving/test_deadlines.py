"""Requests whose time is up: 504 before the first byte, an error event in a stream, and no step afterwards."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.serving.conftest import Servers
from tests.serving.server import ServerProcess, until
from tests.serving.wire import COMPLETIONS, post, request

MANY = 30_000


@pytest.fixture(scope="module")
def one_at_a_time(servers: Servers, script: str) -> Iterator[ServerProcess]:
    """One request runs, the others wait half a second at most; nothing takes longer than eight."""
    with ExitStack() as stack:
        limits = ("--queue-timeout", "0.5", "--request-timeout", "8")
        yield servers.start(stack, script, "--max-num-seqs", "1", "--kv-cache-memory", "0.5", *limits)


def ask(server: ServerProcess, timeout: str | None, **more: Any) -> httpx.Response:
    headers = {} if timeout is None else {"x-request-timeout": timeout}
    body = request(COMPLETIONS, "on and on", MANY, **more)
    return server.http.post(COMPLETIONS, json=body, headers=headers)


def check_late(reply: httpx.Response) -> None:
    assert (reply.status_code, reply.json()["error"]["code"]) == (504, "deadline_exceeded")


def test_a_request_ends_when_its_own_time_is_up(server: ServerProcess) -> None:
    late = server.outcomes().get("deadline", 0)
    before = server.work()
    check_late(ask(server, "0.4"))
    ledger = server.wait_at_rest()
    assert ledger["http"]["outcomes"]["deadline"] == late + 1
    spent = server.work() - before
    assert 0 < spent.computed == spent.wasted
    assert server.work().steps - before.steps == spent.steps, "no step afterwards"


def test_a_stream_ends_in_one_error_event(server: ServerProcess) -> None:
    headers = {"x-request-timeout": "0.5"}
    body = request(COMPLETIONS, "on and on", MANY, stream=True)
    with server.http.stream("POST", COMPLETIONS, json=body, headers=headers) as reply:
        assert reply.status_code == 200
        events = [line.removeprefix("data: ") for line in reply.iter_lines() if line.startswith("data: ")]
    assert json.loads(events[-1])["error"]["code"] == "deadline_exceeded"
    assert "[DONE]" not in events
    assert len(events) > 1


def test_time_enough_changes_nothing(server: ServerProcess) -> None:
    body = request(COMPLETIONS, "x", 5)
    reply = server.http.post(COMPLETIONS, json=body, headers={"x-request-timeout": "1e6"})
    assert reply.json()["choices"] == server.complete("x", 5)["choices"]


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "soon", "", "1,5", "1e999", "1_0", "9300000000", "1e300"])
def test_a_time_that_makes_no_sense_is_a_400(server: ServerProcess, timeout: str) -> None:
    reply = ask(server, timeout)
    assert reply.status_code == 400
    assert reply.json()["error"]["param"] == "X-Request-Timeout"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": ["word " * 200] * 400}),
        ("/rerank", {"query": "q", "documents": ["word " * 200] * 400}),
        ("/score", {"text_1": "q", "text_2": ["word " * 200] * 400}),
    ],
)
def test_pooling_requests_have_deadlines_too(start: Any, path: str, body: dict[str, Any]) -> None:
    server = start("minilm")
    reply = server.http.post(path, json=body, headers={"x-request-timeout": "1"})
    check_late(reply)
    ledger = server.wait_at_rest()
    assert ledger["http"]["outcomes"] == {"deadline": 1}


def test_a_request_that_waits_too_long_never_runs(one_at_a_time: ServerProcess) -> None:
    server = one_at_a_time
    with server.connect() as wire:
        wire.send(post(COMPLETIONS, request(COMPLETIONS, "first", MANY), "first"))
        until(lambda: server.engine()["items"]["running"] == 1)
        [before] = [row["blocks"] for row in server.engine()["holders"]]
        assert before
        check_late(ask(server, None, n=1))
        assert server.engine()["items"]["running"] == 1, "the first goes on"
    ledger = server.wait_at_rest()
    assert ledger["http"]["outcomes"]["deadline"] == 1
    assert server.figures().sum("tenure_requests_total", outcome="client_cancelled") == 1


def test_the_servers_limit_clips_the_requests_own(one_at_a_time: ServerProcess) -> None:
    server = one_at_a_time
    late = server.outcomes().get("deadline", 0)
    body = request(COMPLETIONS, "on and on", MANY, n=1)
    body |= {"min_tokens": MANY, "ignore_eos": True}
    with httpx.Client(base_url=server.address, timeout=60, trust_env=False) as client:
        slow = {**body, "prompt": ["a", "b", "c", "d"]}
        reply = client.post(COMPLETIONS, json=slow, headers={"x-request-timeout": "3600"})
    check_late(reply)
    until(lambda: server.outcomes()["deadline"] == late + 1)
