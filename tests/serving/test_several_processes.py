"""Two API processes and two engines are one server: limits, figures and answers are the same whoever gives them.

Whichever of them dies or stands still, the others serve on, and what it held is ended or freed at once.
"""

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import psutil
import pytest

from tests.serving.conftest import Servers, Start
from tests.serving.script import recited
from tests.serving.server import ServerProcess, until
from tests.serving.wire import COMPLETIONS, Wire, piece_of, post, request

MANY = 30_000
SLOTS = 4
TWO_OF_EACH = ("--api-server-count", "2", "--data-parallel-size", "2", "--kv-cache-memory", "0.5")
FULL = ("--max-num-seqs", str(SLOTS), "--max-num-queued-reqs", "0")


@pytest.fixture(scope="module")
def crew(servers: Servers, script: str) -> Iterator[ServerProcess]:
    """Two of each, with room for few requests."""
    with ExitStack() as stack:
        yield servers.start(stack, script, *TWO_OF_EACH, *FULL, "--engine-heartbeat-timeout", "2", "--async-scheduling")


class Streams:
    """Streams that run, by the API process and the engine that have them."""

    def __init__(self, server: ServerProcess, stack: ExitStack) -> None:
        self._server = server
        self._stack = stack

    def open(self, prompt: str = "stream", tokens: int = MANY, rank: int | None = None) -> Wire:
        """One that has given its first event."""
        wire = self._stack.enter_context(self._server.connect())
        body = request(COMPLETIONS, prompt, tokens, stream=True, ignore_eos=True)
        wire.send(post(COMPLETIONS, body, rank=rank))
        status, _ = wire.head()
        assert status == 200
        assert wire.event()
        return wire

    def on_both_workers(self, rank: int | None = None, tokens: int = MANY) -> dict[int, Wire]:
        """One stream for each API process; whichever takes a connection, so a few tries are needed."""
        found: dict[int, Wire] = {}
        for _ in range(100):
            wire = self.open("both", tokens, rank)
            worker = self._server.worker_of(wire)
            if worker in found:
                wire.close()
            else:
                found[worker] = wire
            if len(found) == 2:
                return found
        raise AssertionError("one API process takes all connections")


@pytest.fixture
def streams(crew: ServerProcess) -> Iterator[Streams]:
    with ExitStack() as stack:
        yield Streams(crew, stack)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def error_of(wire: Wire) -> str:
    """The code of the one error that ends a stream, which says nothing after it."""
    events = wire.events()
    assert "[DONE]" not in events
    assert not [event for event in events[:-1] if "error" in json.loads(event)]
    return str(json.loads(events[-1])["error"]["code"])


def ask_each_worker(server: ServerProcess, path: str) -> dict[int, httpx.Response]:
    """The answer of every API process."""
    found: dict[int, httpx.Response] = {}
    for _ in range(200):
        with server.connect() as wire:
            wire.send(f"GET {path} HTTP/1.1\r\nhost: x\r\n\r\n".encode())
            status, _, body = wire.reply()
            found[server.worker_of(wire)] = httpx.Response(status, content=body)
        if len(found) == len(server.api_pids()):
            return found
    raise AssertionError(f"only {found.keys()} answered")


def ready(server: ServerProcess) -> bool:
    """Every API process says so."""
    return all(reply.status_code == 200 for reply in ask_each_worker(server, "/ready").values())


def test_the_server_says_what_it_consists_of(crew: ServerProcess) -> None:
    lines = crew.announced()
    assert [line for line in lines if "ready at" in line and line.endswith(", 2 API processes")]
    assert [line for line in lines if line.startswith("  script: ") and line.endswith(" in each of 2 engines")]
    assert len(crew.api_pids()) == 2
    assert sorted(crew.engine_pids()) == [0, 1]


def test_any_process_speaks_for_the_whole_server(crew: ServerProcess, streams: Streams) -> None:
    """The engines are filled to the last place, whoever asks them; then, and not before, the answer is 429."""
    for _ in range(2 * SLOTS):
        streams.open()
    for reply in ask_each_worker(crew, "/load").values():
        assert reply.json() == {"server_load": 2 * SLOTS}
    replies = ask_each_worker(crew, "/ledger")
    assert len(replies) == 2
    for reply in replies.values():
        ledger = reply.json()
        assert ledger["conserved"]
        assert ledger["http"]["open"] == 2 * SLOTS
        assert [(engine["index"], engine["permits"]["items"]["held"]) for engine in ledger["engines"]] == [
            (0, SLOTS),
            (1, SLOTS),
        ]
    assert len({reply.json()["epoch"] for reply in replies.values()}) == 1
    assert max(reply.json()["uptime_s"] for reply in replies.values()) < 600
    for reply in ask_each_worker(crew, "/metrics").values():
        held = [line for line in reply.text.splitlines() if line.startswith("tenure_permits_held") and "items" in line]
        assert [float(line.split()[-1]) for line in held] == [SLOTS, SLOTS]
    models = ask_each_worker(crew, "/v1/models")
    assert len({reply.text for reply in models.values()}) == 1
    for _ in range(4):
        refused = crew.http.post(COMPLETIONS, json=request(COMPLETIONS, "more", 5))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert int(refused.headers["retry-after"]) >= 1


def test_a_demanded_engine_is_the_only_one_that_is_asked(crew: ServerProcess, streams: Streams) -> None:
    for _ in range(SLOTS):
        streams.open(rank=1)
    held = [engine["permits"]["items"]["held"] for engine in crew.ledger()["engines"]]
    assert held == [0, SLOTS]
    replies = {
        rank: crew.http.post(
            COMPLETIONS, json=request(COMPLETIONS, "rank", 5), headers={"X-data-parallel-rank": str(rank)}
        )
        for rank in (0, 1, 2, -1)
    }
    assert {rank: reply.status_code for rank, reply in replies.items()} == {0: 200, 1: 429, 2: 400, -1: 400}
    assert "from 0 to 1" in replies[2].json()["error"]["message"]


def test_load_is_shared(crew: ServerProcess, streams: Streams) -> None:
    """As soon as all API processes have heard that the engines are idle, which takes a second."""

    def shared() -> bool:
        wires = [streams.open() for _ in range(4)]
        held = [engine["permits"]["items"]["held"] for engine in crew.ledger()["engines"]]
        for wire in wires:
            wire.close()
        crew.wait_at_rest()
        return held == [2, 2]

    until(shared, "one engine always gets more", tries=40)


def test_an_api_process_that_is_frozen_holds_nobody_up(crew: ServerProcess, streams: Streams) -> None:
    """When it wakes up, its streams go on where they were."""
    tokens = 400
    (asleep, its_stream), (_, other) = streams.on_both_workers(tokens=tokens).items()
    with frozen(asleep):
        assert other.events()[-1] == "[DONE]"
        for number in range(5):
            with crew.connect() as wire:
                wire.send(post(COMPLETIONS, request(COMPLETIONS, f"now {number}", 20)))
                assert json.loads(wire.reply()[2])["choices"][0]["text"] == recited(f"now {number}", 20)
                assert crew.worker_of(wire) != asleep
        time.sleep(2.5)  # longer than an engine may be silent: what it said meanwhile waits to be read
    events = its_stream.events()
    assert events[-1] == "[DONE]"
    assert recited("both", tokens).endswith("".join(map(piece_of, events[:-1])))
    assert ready(crew)


def test_an_engine_that_is_stopped_holds_nobody_up(crew: ServerProcess, streams: Streams) -> None:
    """Within the limit its requests end; the other engine takes new ones, until another one is there."""
    victim = crew.engine_pids()[0]
    on_it, on_other = streams.on_both_workers(rank=0), streams.open(rank=1, tokens=600)
    os.kill(victim, signal.SIGSTOP)
    began = time.monotonic()
    for wire in on_it.values():
        assert error_of(wire) == "engine_unavailable"
    assert time.monotonic() - began < 2 + 2
    for reply in ask_each_worker(crew, "/ready").values():
        assert reply.status_code == 503
    for reply in ask_each_worker(crew, "/health").values():
        assert reply.status_code == 200
    for _ in range(4):
        assert crew.text("meanwhile", 10) == recited("meanwhile", 10)
    assert on_other.events()[-1] == "[DONE]"
    until(lambda: ready(crew), crew.log_text, tries=2400)
    crew.wait_at_rest()
    assert crew.engine_pids()[0] != victim
    assert streams.open(rank=0, tokens=5).events()[-1] == "[DONE]"


def test_an_engine_dies(crew: ServerProcess, streams: Streams) -> None:
    """Its requests end at once, with one error each; those of the other engine go on, and new ones go there."""
    died_once = "the engine 0 of script died (signal SIGKILL); it is started again"
    deaths = len(crew.log_lines(died_once))
    epochs = [engine["epoch"] for engine in crew.ledger()["engines"]]
    on_it, on_other = streams.on_both_workers(rank=0), streams.on_both_workers(rank=1, tokens=600)
    before = crew.outcomes()
    os.kill(crew.engine_pids()[0], signal.SIGKILL)
    died = time.monotonic()
    until(lambda: crew.http.get("/ready").status_code == 503)
    assert time.monotonic() - died < 2
    for wire in on_it.values():
        assert error_of(wire) == "engine_unavailable"
    for _ in range(4):
        assert crew.text("meanwhile", 10) == recited("meanwhile", 10)
    demanded = crew.http.post(COMPLETIONS, json=request(COMPLETIONS, "rank", 5), headers={"X-data-parallel-rank": "0"})
    assert (demanded.status_code, demanded.json()["error"]["code"]) == (503, "engine_unavailable")
    for wire in on_other.values():
        assert wire.events()[-1] == "[DONE]"
    until(lambda: ready(crew), crew.log_text, tries=2400)
    ledger = crew.wait_at_rest()
    assert [engine["epoch"] == epoch for engine, epoch in zip(ledger["engines"], epochs, strict=True)] == [False, True]
    assert ledger["http"]["outcomes"]["unavailable"] - before.get("unavailable", 0) == 3
    assert len(crew.wait_for_log(died_once)) == deaths + 1


def test_an_api_process_dies(crew: ServerProcess, streams: Streams) -> None:
    """The engines free what they held for it; the streams of the other go on; its open requests are counted."""
    on_both = streams.on_both_workers(tokens=1500)
    (victim, lost), (survivor, kept) = on_both.items()
    before = crew.outcomes().get("worker_lost", 0)
    os.kill(victim, signal.SIGKILL)
    with suppress(ConnectionError):
        events = lost.events()
        assert "[DONE]" not in events
        assert not [event for event in events if '"error"' in event]
    events = kept.events()
    assert events[-1] == "[DONE]"
    assert recited("both", 1500).endswith("".join(map(piece_of, events[:-1])))
    crew.wait_ready()
    assert survivor in crew.api_pids()
    assert victim not in crew.api_pids()
    assert crew.wait_at_rest()["http"]["outcomes"]["worker_lost"] == before + 1
    assert crew.wait_for_log("1 open requests ended as worker_lost")
    assert len(ask_each_worker(crew, "/load")) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_server(start: Start, script: str, number: signal.Signals) -> None:
    """Told to stop, all API processes let their streams finish; killed, everything ends."""
    server = start(script, *TWO_OF_EACH)
    with ExitStack() as stack:
        wires = Streams(server, stack).on_both_workers(tokens=600).values()
        pids = [*server.api_pids(), *server.engine_pids().values()]
        children = [psutil.Process(pid) for pid in pids]
        assert len(children) == 4
        server.send_signal(number)
        if number is signal.SIGTERM:
            server.wait_for_log("tenure: stopping")
            for reply in (server.http.get("/ready"), server.http.post(COMPLETIONS, json={"prompt": "late"})):
                assert reply.status_code == 503
                assert int(reply.headers["retry-after"]) >= 1
            assert [wire.events()[-1] for wire in wires] == ["[DONE]", "[DONE]"]
        assert server.wait(60) == (0 if number is signal.SIGTERM else -signal.SIGKILL)
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]


def test_a_script_waits_for_health_and_then_sends_a_request(start: Start, script: str) -> None:
    """Whichever API process it asks; from then on it means that the server lives, also to one that is started later."""
    server = start(script, *TWO_OF_EACH, ready=False)
    until(lambda: server.port() != 0)
    address, seen = f"http://127.0.0.1:{server.port()}", []
    with httpx.Client(base_url=address, trust_env=False, timeout=60) as http:
        until(lambda: seen.append(http.get("/health").status_code) or seen[-1] == 200)  # type: ignore[func-returns-value]
        assert set(seen[:-1]) == {503}
        for number in range(8):
            assert httpx.post(address + COMPLETIONS, json=request(COMPLETIONS, f"{number}", 3)).status_code == 200
    server.wait_ready()
    for engine in server.engine_pids().values():
        os.kill(engine, signal.SIGKILL)
    for worker in server.api_pids():
        os.kill(worker, signal.SIGKILL)
    with server.connect() as wire:  # the engines take longer to start
        wire.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
        assert wire.reply()[0] == 200
    server.wait_ready()


def test_localhost_by_either_family_and_a_long_folder_for_temporary_files(
    start: Start, script: str, tmp_path: Path
) -> None:
    folder = tmp_path / ("x" * 80)
    folder.mkdir()
    arguments = ("--api-server-count", "2", "--host", "localhost")
    server = start(script, *arguments, environment={"TMPDIR": str(folder)})
    port = server.port()
    for address in ("127.0.0.1", "[::1]") if Path("/proc/net/if_inet6").exists() else ("127.0.0.1",):
        for _ in range(4):
            reply = httpx.post(f"http://{address}:{port}{COMPLETIONS}", json=request(COMPLETIONS, "here", 5))
            assert reply.json()["choices"][0]["text"] == recited("here", 5)
    assert list(folder.iterdir()) == []


def test_one_engine_that_cannot_load_ends_all(start: Start, script: str) -> None:
    server = start(script, *TWO_OF_EACH, "--max-model-len", "1000000", ready=False)
    assert server.wait(60) == 1
    [words] = server.log_lines("tenure: ")
    assert "--max-model-len 1000000 is beyond the model's window" in words
