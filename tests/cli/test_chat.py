"""A conversation goes on whatever becomes of one answer; Ctrl-C ends an answer, and the server notices."""

import io
import signal
import subprocess
import sys
import threading

import pytest

from tests.cli.command import Command
from tests.cli.http_server import Exchange, HttpServer, Script, answer, http_server, page


@pytest.fixture
def says(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """What the user types."""
    return lambda *lines: monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))


def contents(exchange: Exchange) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in exchange.json["messages"]]


def test_a_conversation(tenure: Command, says) -> None:  # type: ignore[no-untyped-def]
    says("hello", "  ", "and then?")
    with http_server(answer("[bold]Ahoj", " sv", "ěte[/]"), answer("konec")) as server:
        ended = tenure("chat", "--url", server.url, "--system", "be short", "--max-tokens", "9", "--api-key", "k")
    assert ended.code == 0
    assert "[bold]Ahoj světe[/]\n" in ended.output  # as it is, not as markup
    assert "konec\n" in ended.output
    first, second = server.requests
    assert (first.method, first.path) == ("POST", "/v1/chat/completions")
    assert first.headers["authorization"] == "Bearer k"
    assert contents(first) == [("system", "be short"), ("user", "hello")]
    assert contents(second)[1:] == [("user", "hello"), ("assistant", "[bold]Ahoj světe[/]"), ("user", "and then?")]
    assert {name: first.json[name] for name in ("model", "max_tokens", "temperature", "stream")} == {
        "model": None,
        "max_tokens": 9,
        "temperature": None,
        "stream": True,
    }


def test_model_and_temperature_are_passed_on(tenure: Command, says) -> None:  # type: ignore[no-untyped-def]
    says("hello")
    with http_server(answer("hi")) as server:
        tenure("chat", "--url", server.url, "--model", "other", "--temperature", "0")
    assert (server.requests[0].json["model"], server.requests[0].json["temperature"]) == ("other", 0.0)
    assert "authorization" not in server.requests[0].headers


def test_the_first_key_of_the_environment_is_sent(
    tenure: Command,
    says,  # type: ignore[no-untyped-def]
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    says("hello")
    monkeypatch.setenv("TENURE_API_KEY", "first,second")
    with http_server(answer("hi")) as server:
        tenure("chat", "--url", server.url)
    assert server.requests[0].headers["authorization"] == "Bearer first"


def fails_in_the_stream(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.piece("half an ")
    exchange.event('{"error": {"message": "the engine [/red] was lost", "code": "engine_unavailable"}}')
    exchange.end_stream()


def breaks_off(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.piece("half an ")
    exchange.end_stream()


def is_cut(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.piece("half an ")
    exchange.cut()


def is_garbled(exchange: Exchange) -> None:
    exchange.begin_stream()
    exchange.event("{")
    exchange.end_stream()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (fails_in_the_stream, "the engine [/red] was lost"),
        (breaks_off, "the answer broke off"),
        (is_cut, "peer closed connection"),
        (is_garbled, "no part of an answer"),
        (page(b'{"error": {"message": "too many [requests] are waiting"}}', 429), "too many [requests] are waiting"),
        (page(b"<html>", 502), "the server refused the request"),
        (page(b'{"error": {}}', 500), "the server refused the request"),
        (lambda exchange: exchange.cut(), "disconnected"),
    ],
)
def test_an_answer_that_fails(tenure: Command, says, script: Script, words: str) -> None:  # type: ignore[no-untyped-def]
    """Is told, is no part of the conversation, and does not end the program."""
    says("first", "second")
    with http_server(script, answer("all is well")) as server:
        ended = tenure("chat", "--url", server.url)
    assert ended.code == 0
    assert words in ended.output
    assert "all is well\n" in ended.output
    assert contents(server.requests[-1]) == [("user", "second")]
    assert "Traceback" not in ended.output + ended.errors


def test_no_server(tenure: Command, says) -> None:  # type: ignore[no-untyped-def]
    with http_server(answer()) as server:
        pass
    says("hello", "hello?")
    ended = tenure("chat", "--url", server.url)
    assert ended.code == 1
    assert ended.output.count(f"{server.url}: no server answers there; start one with: tenure serve") == 2


@pytest.mark.parametrize("url", ["http://[::1", "127.0.0.1:8000", "ftp://x"])
def test_an_address_that_is_none(tenure: Command, says, url: str) -> None:  # type: ignore[no-untyped-def]
    says("hello")
    ended = tenure("chat", "--url", url)
    assert "Traceback" not in ended.output + ended.errors
    assert "cannot be used" in ended.errors or "protocol" in ended.output


_CHAT = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever runs the tests may ignore it
from tenure.cli.main import main
main()
"""


class Interrupted:
    """A script that has the user press Ctrl-C in the middle of its answer."""

    def __init__(self, *, streams: bool) -> None:
        self.process: subprocess.Popen[str] | None = None
        self.closed = threading.Event()
        self._streams = streams

    def __call__(self, exchange: Exchange) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        if self._streams:
            exchange.begin_stream()
            exchange.piece("an endless answer\n")
            while "an endless answer" not in self.process.stdout.readline():
                pass
        self.process.send_signal(signal.SIGINT)
        if exchange.wait_closed():
            self.closed.set()


@pytest.mark.parametrize("streams", [True, False], ids=["in the answer", "before the answer"])
def test_an_interrupt_cancels_the_answer_and_not_the_program(streams: bool) -> None:
    interrupted = Interrupted(streams=streams)
    with http_server(interrupted, answer("still here")) as server:
        interrupted.process = _start(server)
        with interrupted.process as process:
            assert process.stdin is not None
            process.stdin.write("talk\n")
            process.stdin.flush()
            assert interrupted.closed.wait(timeout=30)
            output, errors = process.communicate("go on\n", timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert "(cancelled)" in output
    assert "still here\n" in output
    said = [("assistant", "an endless answer\n")] if streams else [("assistant", "")]
    assert contents(server.requests[1]) == [("user", "talk"), *said, ("user", "go on")]


def _start(server: HttpServer) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _CHAT, "chat", "--url", server.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "TERM": "dumb", "COLUMNS": "200", "PYTHONPATH": ":".join(sys.path)},
    )
