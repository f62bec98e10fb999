"""`tenure ledger` and `tenure models`: readable, and honest about what they could not learn."""

import json
from typing import Any

import msgspec
import pytest

from tenure.source import ALIASES
from tenure.wire import messages as wire
from tests.cli.command import Command
from tests.cli.http_server import answer, http_server, page
from tests.wire.samples import LEDGER

ENGINE = msgspec.structs.replace(
    LEDGER, holders=[wire.HolderRow("item 7", "chatcmpl-5f", "[/red] [bold]mine", "running", 12, 0.3)]
)


def ledger(*engines: wire.EngineLedger, conserved: bool = True) -> bytes:
    return msgspec.json.encode(
        {
            "conserved": conserved,
            "epoch": "e",
            "uptime_s": 12.5,
            "http": {"open": 1, "arrivals": 8, "outcomes": {"ok": 5, "client_cancelled": 2}},
            "engines": engines,
            "newer": None,
        }
    )


def test_a_ledger_as_tables(tenure: Command) -> None:
    with http_server(page(ledger(ENGINE))) as server:
        ended = tenure("ledger", "--url", server.url, "--api-key", "k")
    assert ended.code == 0
    lines = [" ".join(line.replace("│", " ").replace("┃", " ").split()) for line in ended.output.splitlines()]
    assert lines[0] == "conserved, up for 12 s"
    assert lines[1] == "requests: 1 open of 8; 5 ok, 2 client_cancelled"
    assert "tiny 1" in lines[2]
    assert "blocks 16 10 3 2 1" in lines
    assert "slots 4 3 1" in lines
    assert "permits: items 8 6 2" in lines
    assert "permits: tokens 90 60 30" in lines
    assert "item 7 chatcmpl-5f [/red] [bold]mine running 12 0.3 s" in lines  # a caller's label is text, not markup
    assert (server.requests[0].path, server.requests[0].headers["authorization"]) == ("/ledger", "Bearer k")


def test_a_ledger_that_is_not_conserved(tenure: Command) -> None:
    """Scripts learn it from the exit code, whatever the form."""
    silent = msgspec.structs.replace(LEDGER, answering=False)
    with http_server(page(ledger(ENGINE, silent, conserved=False))) as server:
        tables = tenure("ledger", "--url", server.url)
        plain = tenure("ledger", "--url", server.url, "--output", "json")
    assert (tables.code, plain.code) == (1, 1)
    assert tables.output.startswith("NOT conserved")
    assert "tiny 1: does not answer" in tables.output


def test_a_ledger_as_json(tenure: Command) -> None:
    """Everything that the server sent, the fields that this command does not know among them."""
    with http_server(page(ledger(ENGINE))) as server:
        ended = tenure("ledger", "--url", server.url, "--output", "json")
    assert ended.code == 0
    assert json.loads(ended.output) == json.loads(ledger(ENGINE))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (page(b"{}", 401), "/ledger answers 401"),
        (page(b"<html>"), "no Tenure server"),
        (page(b'{"conserved": true}'), "no Tenure server"),
        (lambda exchange: exchange.cut(), "disconnected"),
    ],
)
@pytest.mark.parametrize("command", ["ledger"])
def test_what_is_no_ledger(tenure: Command, script: Any, words: str, command: str) -> None:
    with http_server(script) as server:
        ended = tenure(command, "--url", server.url)
    assert ended.code == 1
    [line] = ended.errors.splitlines()
    assert line.startswith("tenure: ")
    assert words in line
    assert server.url in line


@pytest.mark.parametrize("url", ["http://[::1", "nonsense"])
def test_an_address_that_is_none(tenure: Command, url: str) -> None:
    ended = tenure("ledger", "--url", url)
    assert ended.code == 1
    assert len(ended.errors.splitlines()) == 1


def test_no_server_for_the_ledger(tenure: Command) -> None:
    with http_server(answer()) as server:
        pass
    ended = tenure("ledger", "--url", server.url)
    assert ended.code == 1
    assert ended.errors == f"tenure: {server.url}: no server answers there; start one with: tenure serve\n"


def test_models_without_a_server(tenure: Command) -> None:
    """Those that are built in are listed all the same."""
    with http_server(answer()) as server:
        pass
    ended = tenure("models", "--url", server.url)
    assert ended.code == 0
    assert all(alias in ended.output for alias in ALIASES)
    assert f"{server.url}: no server answers there" in ended.output


def test_models_of_a_server(tenure: Command) -> None:
    models = {
        "object": "list",
        "data": [{"id": "smol[/x]", "max_model_len": 8192, "tasks": ["embed", "score"]}, {"id": "other"}],
    }
    with http_server(page(json.dumps(models).encode())) as server:
        ended = tenure("models", "--url", server.url)
    assert ended.code == 0
    assert "smol[/x]" in ended.output
    assert "8192" in ended.output
    assert "embed, score" in ended.output
    assert "other" in ended.output


@pytest.mark.parametrize("content", [b"<html>", b"{}", b'{"data": [{}]}'])
def test_models_of_something_else(tenure: Command, content: bytes) -> None:
    with http_server(page(content)) as server:
        ended = tenure("models", "--url", server.url)
    assert ended.code == 0
    assert "no Tenure server" in ended.output


@pytest.mark.parametrize("command", [("ledger",), ("ledger", "--check"), ("models",)], ids=" ".join)
@pytest.mark.parametrize(("flags", "sent"), [((), "Bearer first"), (("--api-key", "k,l"), "Bearer k,l")])
def test_keys_of_the_environment_are_read_as_the_server_reads_them(
    tenure: Command, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], flags: tuple[str, ...], sent: str
) -> None:
    """Any of several will do. A flag is one key, as it is, and has the last word."""
    monkeypatch.setenv("TENURE_API_KEY", " first,second")
    with http_server(page(ledger())) as server:
        tenure(*command, "--url", server.url, *flags)
    assert {request.headers["authorization"] for request in server.requests} == {sent}
