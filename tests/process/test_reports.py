"""What a child says is what its supervisor reads."""

import os

import pytest

from tenure.process.reports import AnyReport, Failed, Loaded, Serving, read_reports, write_report
from tests.wire.samples import CARD


@pytest.mark.parametrize("report", [Loaded(card=CARD), Serving(), Failed(message="řádek\nřádek \x1b[0m")])
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
