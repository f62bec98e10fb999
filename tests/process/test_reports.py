"""What a child says is what its supervisor reads."""

import os

import pytest

from tenure.process.reports import Alive, AnyReport, Failed, Loaded, Serving, offer_report, read_reports, write_report
from tests.wire.samples import CARD


@pytest.mark.parametrize(
    "report", [Loaded(card=CARD), Serving(), Alive(step=3, busy=True), Failed(message="řádek\nřádek \x1b[0m")]
)
def test_reports_arrive_as_they_were_sent(report: AnyReport) -> None:
    reading, writing = os.pipe()
    write_report(writing, report)
    write_report(writing, Serving())
    assert read_reports(os.read(reading, 65536)) == [report, Serving()]
    os.close(reading)
    write_report(writing, report)  # the supervisor is gone, which has a signal of its own
    os.close(writing)


def test_no_lines_are_no_reports() -> None:
    assert read_reports(b"") == []


def test_signs_of_life_that_nobody_reads_hold_nobody_up() -> None:
    """A supervisor that is frozen reads nothing; what fits into the pipe it finds later."""
    reading, writing = os.pipe()
    for step in range(5000):
        offer_report(writing, Alive(step=step))
    found = read_reports(os.read(reading, 1 << 20))
    assert found == [Alive(step=step) for step in range(len(found))]
    assert 100 < len(found) < 5000
    offer_report(writing, Alive(step=9))
    assert read_reports(os.read(reading, 65536)) == [Alive(step=9)]
    os.close(reading)
    offer_report(writing, Alive(step=9))
    os.close(writing)
