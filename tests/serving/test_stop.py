"""A stop is an ordered end: an answer for everyone, a time limit, exit code 0 (F47)."""

import json
import os
import signal
import time
from contextlib import ExitStack

import httpx
import pytest

from tests.serving.conftest import Start
from tests.serving.script import recited
from tests.serving.server import until
from tests.serving.wire import CHAT, COMPLETIONS, piece_of, post, request


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_open_streams_are_finished(start: Start, script: str, number: signal.Signals) -> None:
    server, tokens = start(script, "--max-num-seqs", "3"), 600
    with ExitStack() as stack:
        wires = [stack.enter_context(server.connect()) for _ in range(6)]  # three run and three are queued
        for index, wire in enumerate(wires):
            body = request(COMPLETIONS, "drained", tokens, stream=index < 5)
            wire.send(post(COMPLETIONS, body))
        until(lambda: server.load() == 6)
        server.send_signal(number)
        server.wait_for_log("tenure: stopping")
        until(lambda: server.http.get("/ready").status_code == 503)
        assert server.http.get("/health").status_code == 200
        for path in (COMPLETIONS, CHAT):
            refused = server.http.post(path, json=request(path, "late", 5))
            assert refused.status_code == 503
            assert "retry-after" in refused.headers
        for wire in wires[:5]:
            assert wire.head()[0] == 200
            events = wire.events()
            assert events[-1] == "[DONE]"
            assert "".join(map(piece_of, events[:-1])) == recited("drained", tokens)
        status, _, body = wires[5].reply()
        assert status == 200
        assert json.loads(body)["choices"][0]["text"] == recited("drained", tokens)
    assert server.wait(60) == 0
    assert server.log_lines("outcome=unavailable")
    assert len(server.log_lines("outcome=ok")) == 6


@pytest.mark.parametrize("seconds", ["0", "0.5"])
def test_what_does_not_finish_in_time_is_ended(start: Start, script: str, seconds: str) -> None:
    server = start(script, "--max-num-seqs", "2", "--shutdown-timeout", seconds)
    with ExitStack() as stack:
        running, queued = stack.enter_context(server.connect()), stack.enter_context(server.connect())
        running.send(post(COMPLETIONS, request(COMPLETIONS, "runs", 30_000, stream=True, n=2)))
        running.head()
        running.event()
        queued.send(post(CHAT, request(CHAT, "waits", 5, stream=True)))
        until(lambda: server.load() == 2)
        server.send_signal(signal.SIGTERM)
        events = running.events()
        assert json.loads(events[-1])["error"]["code"] == "engine_unavailable"
        assert "[DONE]" not in events
        assert queued.reply()[0] == 503
    assert server.wait(60) == 0
    assert len(server.log_lines("outcome=unavailable")) == 2


@pytest.mark.parametrize("asleep", [False, True], ids=["", "with a frozen API process"])
def test_a_second_signal_ends_at_once(start: Start, script: str, asleep: bool) -> None:
    """And in quiet: it is what the user wants."""
    server = start(script, "--shutdown-timeout", "600", "--api-server-count", "2", "--data-parallel-size", "2")
    with server.connect() as wire:
        wire.send(post(COMPLETIONS, request(COMPLETIONS, "endless", 30_000, n=8)))
        until(lambda: sum(engine["items"]["running"] for engine in server.ledger()["engines"]) == 8)
        if asleep:
            os.kill(server.worker_of(wire), signal.SIGSTOP)
        server.send_signal(signal.SIGTERM)
        server.wait_for_log("tenure: stopping")
        began = time.monotonic()
        server.send_signal(signal.SIGTERM)
        assert server.wait(20) == 1
        assert time.monotonic() - began < 3
    [words] = server.log_lines("tenure: ended at once by a second signal")
    assert words.endswith("open requests that were cut off: 1")
    assert not [line for line in server.log() if "ERROR" in line or "WARNING" in line]
    with pytest.raises(httpx.ConnectError):
        httpx.get(server.address + "/health", trust_env=False)


def test_a_signal_while_the_model_loads(start: Start, script: str) -> None:
    """Nobody need wait for a model that is not wanted any more."""
    server = start(script, ready=False)
    until(lambda: bool(server.announced()))
    until(lambda: bool(server.engine_pid))
    server.send_signal(signal.SIGTERM)
    assert server.wait(30) == 0
    assert not [line for line in server.announced() if "ready" in line]
