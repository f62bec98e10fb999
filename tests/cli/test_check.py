"""`tenure ledger --check`: exit code 0 for a server that keeps its promises, 1 and a line for each that it breaks."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tenure.cli.check import check_ledger
from tenure.wire import messages as wire
from tests.cli.command import Command
from tests.cli.http_server import http_server, page
from tests.wire.samples import LEDGER

IDLE = msgspec.structs.replace(
    LEDGER,
    conserved=True,
    blocks=wire.BlockCounts(total=16, free=12, cached=4, leased=0, quarantined=0),
    slots=wire.SlotCounts(4, 4, 0),
    permits=wire.PermitCounts(wire.PermitCount(0), wire.PermitCount(0, 8), wire.PermitCount(0, 90)),
    items=wire.ItemCounts(0, 0, 0, 0, 0),
    holders=[],
    figures=wire.StatsSnapshot(),
)
BUSY = msgspec.structs.replace(
    IDLE, blocks=wire.BlockCounts(16, 10, 4, 2, 0), slots=wire.SlotCounts(4, 3, 1), holders=LEDGER.holders
)


def ledger(*engines: wire.EngineLedger, open_requests: int = 0, arrivals: int = 7) -> bytes:
    http = {"open": open_requests, "arrivals": arrivals, "outcomes": {"ok": 5, "client_cancelled": 2}}
    return msgspec.json.encode({"conserved": True, "epoch": "e", "uptime_s": 1, "http": http, "engines": engines})


def check(content: bytes) -> int:
    with http_server(page(content)) as server:
        return check_ledger(server.url, "", pause=lambda seconds: None)


def test_a_server_at_rest_that_holds_nothing(tenure: Command) -> None:
    with http_server(page(ledger(IDLE))) as server:
        ended = tenure("ledger", "--check", "--url", server.url, "--api-key", "k")
    assert (ended.code, ended.errors) == (0, "")
    assert ended.output == "ok: nothing is held; 7 requests arrived (5 ok, 2 client_cancelled); 1 engines\n"
    assert [request.headers["authorization"] for request in server.requests] == ["Bearer k"]


def test_what_a_busy_server_holds_is_not_judged(capsys: pytest.CaptureFixture[str]) -> None:
    assert check(ledger(BUSY, open_requests=1, arrivals=8)) == 0
    assert capsys.readouterr().out.startswith("ok: 1 open, so what is held was not judged")


def changed(**changes: Any) -> wire.EngineLedger:
    return msgspec.structs.replace(IDLE, **changes)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (ledger(IDLE, open_requests=-1, arrivals=6), "6 requests arrived, but 7 ended"),
        (ledger(changed(answering=False)), "engine 1 of tiny does not answer"),
        (ledger(changed(conserved=False)), "its audit failed"),
        (ledger(changed(blocks=wire.BlockCounts(16, 10, 4, 0, 0))), "its blocks do not add up: 16 total, 10 free"),
        (ledger(changed(blocks=wire.BlockCounts(16, 10, 4, 2, 0))), "blocks are held: 16 total, 10 free, 4 cached, 2"),
        (ledger(changed(blocks=wire.BlockCounts(16, 10, 4, 0, 2))), "blocks are held"),
        (ledger(changed(slots=wire.SlotCounts(4, 3, 0))), "its slots do not add up"),
        (ledger(changed(slots=wire.SlotCounts(4, 3, 1))), "1 slots are held"),
        (
            ledger(changed(permits=wire.PermitCounts(wire.PermitCount(1), IDLE.permits.items, IDLE.permits.tokens))),
            "permits for 1 requests are held",
        ),
        (ledger(changed(items=wire.ItemCounts(0, 0, 0, 0, 1, 0))), "there are sequences: 0 waiting"),
        (ledger(changed(figures=wire.StatsSnapshot(queued_requests=1))), "there are sequences"),
        (ledger(changed(holders=LEDGER.holders)), "item 7 of cmpl-1 holds 2 blocks"),
        (ledger(IDLE, changed(index=3, slots=wire.SlotCounts(4, 3, 1))), "engine 3 of tiny: no request is open"),
    ],
)
def test_what_is_not_as_it_must_be(content: bytes, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert check(content) == 1
    *faults, verdict = capsys.readouterr().out.splitlines()
    assert [fault for fault in faults if fault.startswith("FAULT: ") and words in fault]
    assert verdict.startswith(f"NOT OK: {len(faults)} faults; ")


def test_a_fault_that_does_not_stay_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """The parts of a ledger are read one after the other, while requests come and go."""
    pages: list[Callable[[Any], None]] = [page(ledger(BUSY)), page(ledger(IDLE))]
    with http_server(lambda exchange: pages.pop(0)(exchange)) as server:
        assert check_ledger(server.url, "", pause=lambda seconds: None) == 0
    assert len(server.requests) == 2
    assert capsys.readouterr().out.startswith("ok: nothing is held")


def test_no_server_is_a_fault_too(tenure: Command) -> None:
    with http_server(page(b"<html>")) as server:
        ended = tenure("ledger", "--check", "--url", server.url)
    assert ended.code == 1
    assert "no Tenure server" in ended.errors
