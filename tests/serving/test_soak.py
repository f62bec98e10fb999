"""A minute of the soak (`python -m benchmarks.soak`): every kind of client at once, and every promise kept."""

import anyio
import pytest

from benchmarks.soak import report
from benchmarks.storm.books import Books, Sight
from benchmarks.storm.storm import Plan, Result, run
from tenure.outcomes import Outcome

_MIB = 1024 * 1024


@pytest.mark.timeout(300)
def test_every_promise_is_kept_under_a_storm() -> None:
    """Memory has more room than in the long run: in its first minute a server meets most of what it has to keep."""
    plan = Plan(seconds=50, seed=4, clients=24, models=("script", "minilm"), memory_margin=256 * _MIB)
    result: Result = anyio.run(run, plan, print)
    text = report(result)
    assert result.held, text
    assert "every promise was kept" in text
    assert sum(result.books.logged.values()) > 500, text
    assert result.watch.peaks.load > 8, text


# The books themselves: what they would find.

OK, GONE, INVALID = Outcome.OK, Outcome.CLIENT_CANCELLED, Outcome.INVALID


def books_of(*sights: Sight, lines: tuple[Outcome, ...]) -> Books:
    """One label with these requests, and what the server says of them."""
    books = Books()
    for _ in sights:
        books.open("one")
    for line in lines:
        books.line("one", line)
    for sight in sights:
        books.close("one", sight)
    return books


def saw(*allowed: Outcome, unheard: bool = False) -> Sight:
    return Sight("seen", frozenset(allowed), unheard)


@pytest.mark.parametrize(
    ("sights", "lines"),
    [
        ((saw(OK),), (OK,)),
        ((saw(OK, GONE, unheard=True),), (GONE,)),
        ((saw(OK, GONE, unheard=True),), ()),
        ((saw(INVALID, GONE), saw(OK, GONE)), (GONE, INVALID)),
        ((saw(OK, GONE), saw(INVALID, GONE)), (GONE, INVALID)),
        ((saw(OK), saw(OK, GONE, unheard=True), saw(OK)), (OK, OK)),
    ],
)
def test_books_that_agree(sights: tuple[Sight, ...], lines: tuple[Outcome, ...]) -> None:
    assert books_of(*sights, lines=lines).unsettled(lost=0) == []


@pytest.mark.parametrize(
    ("sights", "lines", "words"),
    [
        ((saw(OK),), (INVALID,), "the server counts invalid"),
        ((saw(OK),), (OK, OK), "the server counts ok"),
        ((saw(OK),), (), "no line of the server's"),
        ((saw(OK), saw(GONE)), (OK, OK), "the server counts ok"),
    ],
)
def test_books_that_do_not_agree(sights: tuple[Sight, ...], lines: tuple[Outcome, ...], words: str) -> None:
    [fault] = books_of(*sights, lines=lines).unsettled(lost=0)
    assert words in fault


def test_a_request_that_nobody_made_is_a_fault_at_once() -> None:
    books = Books()
    books.line("whose", OK)
    assert books.fault_count == 1


def test_requests_that_died_with_a_process_have_no_line() -> None:
    assert books_of(saw(OK), lines=()).unsettled(lost=1) == []
