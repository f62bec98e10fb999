"""A process that is killed or stopped ends what it held, soon and visibly; the others go on (F44, F45, F46)."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil

from tests.serving.conftest import Start
from tests.serving.script import recited
from tests.serving.server import ServerProcess, until
from tests.serving.wire import CHAT, COMPLETIONS, Wire, piece_of, post, request

MANY = 30_000


def _open_streams(server: ServerProcess, stack: ExitStack, count: int) -> list[Wire]:
    """Streams of which each has given a few events."""
    streams = []
    for number in range(count):
        path = (COMPLETIONS, CHAT)[number % 2]
        wire = stack.enter_context(server.connect())
        wire.send(post(path, request(path, f"stream {number}", MANY, stream=True)))
        assert wire.head()[0] == 200
        assert [wire.event() for _ in range(3)]
        streams.append(wire)
    return streams


def _check_ends_in_one_error(events: list[str]) -> None:
    """One error event, the last one, and nothing that looks like success."""
    errors = [json.loads(event)["error"] for event in events if event == "[DONE]" or "error" in json.loads(event)]
    assert len(errors) == 1
    assert errors[0]["code"] == "engine_unavailable"
    assert "error" in json.loads(events[-1])
    finished = [choice for event in events[:-1] for choice in json.loads(event)["choices"] if choice["finish_reason"]]
    assert finished == []


def _check_refused(server: ServerProcess) -> None:
    for path in (COMPLETIONS, CHAT):
        reply = server.http.post(path, json=request(path, "now", 5))
        assert reply.status_code == 503
        assert int(reply.headers["retry-after"]) >= 1
        assert reply.json()["error"]["code"] == "engine_unavailable"
    assert server.http.get("/ready").status_code == 503
    assert server.http.get("/health").status_code == 200


def _ready(server: ServerProcess) -> bool:
    try:
        return server.http.get("/ready").status_code == 200
    except httpx.TransportError:
        return False


def test_the_engine_is_killed(start: Start, script: str) -> None:
    server = start(script)
    before = server.engine()
    with ExitStack() as stack:
        streams = _open_streams(server, stack, 10)
        whole = stack.enter_context(server.connect())
        whole.send(post(COMPLETIONS, request(COMPLETIONS, "whole", MANY)))
        until(lambda: server.engine()["items"]["running"] == 11)
        os.kill(server.engine_pid, signal.SIGKILL)
        for stream in streams:
            _check_ends_in_one_error(stream.events())
        status, fields, body = whole.reply()
        assert (status, json.loads(body)["error"]["code"]) == (503, "engine_unavailable")
        assert int(fields["retry-after"]) >= 1
        ended = fields["x-tenure-request-id"]
        _check_refused(server)
        assert server.ledger()["http"]["outcomes"] == {"unavailable": 13}
    until(lambda: _ready(server), server.log_text, tries=2400)
    assert server.text("again", 100) == recited("again", 100)
    answer = {"id": ended, "outcome": "unavailable", "seconds": 0.0}
    assert server.http.post(f"/v1/requests/{ended}/cancel").json() == answer, "the new engine learns of it"
    after = server.wait_at_rest()
    assert after["engines"][0]["epoch"] != before["epoch"]
    assert after["http"]["outcomes"] == {"unavailable": 13, "ok": 1}
    assert len(server.wait_for_log("the engine of script died (signal SIGKILL)")) == 1


def test_the_api_process_is_killed(start: Start, script: str) -> None:
    server = start(script)
    with ExitStack() as stack:
        streams = _open_streams(server, stack, 10)
        epoch = server.engine()["epoch"]
        ended = server.engine()["holders"][0]["request"]
        os.kill(server.api_pid, signal.SIGKILL)
        for stream in streams:
            with suppress(ConnectionError):
                events = stream.events()
                assert "[DONE]" not in events
                assert not [event for event in events if '"error"' in event]
    server.wait_ready()
    ledger = server.wait_at_rest()
    assert ledger["engines"][0]["epoch"] == epoch
    assert ledger["http"]["outcomes"] == {"worker_lost": 10}
    before = server.work()
    assert before.wasted == before.computed
    answer = {"id": ended, "outcome": "worker_lost", "seconds": 0.0}
    assert server.http.post(f"/v1/requests/{ended}/cancel").json() == answer, "the engine remembers it"
    assert server.text("again", 100) == recited("again", 100)
    spent = server.work() - before
    assert (spent.computed, spent.sampled) == (5 + 99, 100)
    assert server.wait_for_log("10 open requests ended as worker_lost")


def test_the_supervisor_is_killed(start: Start, script: str) -> None:
    server = start(script)
    with ExitStack() as stack:
        _open_streams(server, stack, 3)
        children = [psutil.Process(pid) for pid in (server.engine_pid, server.api_pid)]
        server.send_signal(signal.SIGKILL)
        assert server.wait(30) == -signal.SIGKILL
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_the_engine_is_stopped(start: Start, script: str) -> None:
    """Its requests end within the limit, and another one takes its place."""
    server = start(script, "--engine-heartbeat-timeout", "2")
    with ExitStack() as stack:
        streams = _open_streams(server, stack, 5)
        whole = stack.enter_context(server.connect())
        whole.send(post(COMPLETIONS, request(COMPLETIONS, "whole", MANY)))
        until(lambda: server.engine()["items"]["running"] == 6)
        engine = server.engine_pid
        os.kill(engine, signal.SIGSTOP)
        for stream in streams:
            _check_ends_in_one_error(stream.events())
        assert whole.reply()[0] == 503
        _check_refused(server)
        assert [entry["answering"] for entry in server.ledger()["engines"]] == [False]
        server.wait_for_log("the engine of script is killed: it has given no sign of life for 2 s")
    until(lambda: _ready(server), server.log_text, tries=2400)
    assert server.text("again", 100) == recited("again", 100)
    assert server.engine_pid != engine


class _Rivals:
    """Processes that compute without a pause while they starve another one: it gets next to nothing of their core."""

    def __init__(self, stack: ExitStack, count: int) -> None:
        spin = [sys.executable, "-c", "import sys\nprint(flush=True)\nsys.stdin.read()\nwhile True: pass"]
        self._rivals = []
        for _ in range(count):  # each in a session of its own, for Linux may share a core out among sessions
            pipe = subprocess.PIPE
            rival = stack.enter_context(subprocess.Popen(spin, stdin=pipe, stdout=pipe, start_new_session=True))
            stack.callback(rival.kill)
            assert rival.stdout is not None
            rival.stdout.readline()
            self._rivals.append(rival)

    @contextmanager
    def starve(self, pid: int) -> Iterator[None]:
        cores = os.sched_getaffinity(pid)
        _place(pid, {min(cores)}, 19)
        for rival in self._rivals:
            os.sched_setaffinity(rival.pid, {min(cores)})
            assert rival.stdin is not None
            rival.stdin.close()
        yield
        for rival in self._rivals:
            rival.kill()
        _place(pid, cores, 0)


def _place(pid: int, cores: set[int], nice: int) -> None:
    for thread in map(int, os.listdir(f"/proc/{pid}/task")):
        os.sched_setaffinity(thread, cores)
        with suppress(PermissionError):  # only root may take it back
            os.setpriority(os.PRIO_PROCESS, thread, nice)
    with suppress(OSError):  # where Linux does not share out among sessions
        Path(f"/proc/{pid}/autogroup").write_text(str(nice))


def test_a_machine_that_is_busy_loses_nothing(start: Start, script: str) -> None:
    """An engine that gets no core says nothing for several times the limit. It is waited for."""
    server = start(script, "--engine-heartbeat-timeout", "1.5", "--engine-step-timeout", "1.5")
    engine, tokens = server.engine_pid, 1000
    with ExitStack() as stack:
        rivals = _Rivals(stack, 24)
        wires = [stack.enter_context(server.connect()) for _ in range(3)]
        for number, wire in enumerate(wires):
            body = request(COMPLETIONS, f"stream {number}", tokens, stream=True, ignore_eos=True)
            wire.send(post(COMPLETIONS, body))
            assert wire.head()[0] == 200
        with rivals.starve(engine):
            time.sleep(5)  # that nothing comes of it, is what is tested
        for number, wire in enumerate(wires):
            *pieces, last = wire.events()
            assert last == "[DONE]"
            assert "".join(map(piece_of, pieces)) == recited(f"stream {number}", tokens)
    assert server.engine_pid == engine
    assert not server.log_lines("is killed")
    assert server.outcomes() == {"ok": 3}


def test_a_frozen_api_process_is_killed_in_the_end(start: Start, script: str) -> None:
    """What it held comes back then, and another one takes its place."""
    server = start(script, "--api-heartbeat-timeout", "4")
    with ExitStack() as stack:
        wires = _open_streams(server, stack, 3)
        frozen = server.api_pid
        os.kill(frozen, signal.SIGSTOP)
        server.wait_for_log("the API process is killed: it has given no sign of life for 4 s")
        for wire in wires:
            with suppress(ConnectionError):
                assert "[DONE]" not in wire.events()
    server.wait_ready()
    assert server.api_pid != frozen
    assert server.wait_at_rest()["http"]["outcomes"] == {"worker_lost": 3}
    assert server.text("again", 100) == recited("again", 100)


def test_a_step_that_does_not_end_is_a_death(start: Start) -> None:
    """Though the engine's I/O thread lives: its requests end, and the engine is started again (F45)."""
    flags = ("--engine-step-timeout", "1.5", "--step-time", "0", "--max-num-batched-tokens", "16384")
    server = start("smollm2", *flags, "--kv-cache-memory", "1")
    engine = server.engine_pid
    prompts = [f"{herd}: " + "".join(f"{number} cows. " for number in range(400)) for herd in range(6)]
    reply = server.http.post(COMPLETIONS, json={"model": "smollm2", "prompt": prompts, "max_tokens": 2})
    assert (reply.status_code, reply.json()["error"]["code"]) == (503, "engine_unavailable")
    server.wait_for_log("the engine of smollm2 is killed: it has not gone on for 1.5 s")
    until(lambda: _ready(server), server.log_text, tries=2400)
    assert server.engine_pid != engine
    assert server.complete("A cow", 2, "smollm2", ignore_eos=True)["usage"]["completion_tokens"] == 2
    assert server.outcomes() == {"unavailable": 1, "ok": 1}


def test_three_deaths_end_the_server(start: Start, script: str) -> None:
    server = start(script)
    killed: list[int] = []

    def kill_the_next() -> bool:
        engine = server.engine_pid if server.alive else 0
        if engine and engine not in killed:
            killed.append(engine)
            os.kill(engine, signal.SIGKILL)
        return len(killed) == 3

    until(kill_the_next)
    assert server.wait(60) == 1
    assert len(server.log_lines("the engine of script died (signal SIGKILL)", "it is started again")) == 2
    assert server.log_lines("tenure: the engine of script died (signal SIGKILL); the server ends")


def test_an_engine_that_cannot_be_started_again_ends_the_server_in_order(start: Start, script: str) -> None:
    """Its death and two failed starts are as good as three deaths, and the reason is the server's last word."""
    server = start(script)
    directory = Path(server.engine_socket("script")).parent
    supervisor = psutil.Process(server.pid)
    supervisor.rlimit(psutil.RLIMIT_NOFILE, (5, supervisor.rlimit(psutil.RLIMIT_NOFILE)[1]))
    os.kill(server.engine_pid, signal.SIGKILL)
    assert server.wait(60) == 1
    failed = "the engine of script could not be started: Too many open files"
    assert len(server.log_lines(failed, "it is started again")) == 1
    assert server.log_lines(f"tenure: {failed}; the server ends")
    shutil.rmtree(directory, ignore_errors=True)  # the server could not open it any more


def test_a_long_step_is_no_death(start: Start) -> None:
    """An engine whose loop is busy for longer than the heartbeat's limit lives (F45)."""
    server = start(
        "smollm2", "--engine-heartbeat-timeout", "1.5", "--step-time", "0", "--max-num-batched-tokens", "4096"
    )
    prompt = "".join(f"{number} cows. " for number in range(400))
    assert server.complete(prompt, 2, "smollm2", ignore_eos=True)["usage"]["completion_tokens"] == 2
    assert not server.log_lines("is killed")


def test_the_server_ends_with_its_engine_if_told_to(start: Start, script: str) -> None:
    server = start(script, "--on-engine-death", "exit")
    with ExitStack() as stack:
        _open_streams(server, stack, 2)
        os.kill(server.engine_pid, signal.SIGKILL)
        assert server.wait(60) == 1
    assert server.log_lines("tenure: the engine of script died (signal SIGKILL); the server ends")
