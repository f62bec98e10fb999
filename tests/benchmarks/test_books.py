"""The storm's two sets of books find every request of which server and client say different things, and no other."""

from itertools import permutations

import pytest

from benchmarks.storm.books import Books, Sight
from tenure.outcomes import Outcome

OK, INVALID, GONE = Outcome.OK, Outcome.INVALID, Outcome.CLIENT_CANCELLED
READ = Sight("200", frozenset((OK,)))
REFUSED = Sight("400", frozenset((INVALID,)))
LEFT = Sight("left", frozenset((OK, GONE)), ignore_progress=True)
LEFT_NONSENSE = Sight("left nonsense", frozenset((INVALID, GONE)), ignore_progress=True)
LATE = Sight("late", frozenset((OK, GONE)))


def kept(sights: list[Sight], lines: list[Outcome], lost: int = 0) -> list[str]:
    """What does not agree after requests of one label, whether their lines come before or after what clients see."""
    before, after = Books(), Books()
    for books in (before, after):
        for _ in sights:
            books.open("a")
    for line in lines:
        before.line("a", line)
    for sight in sights:
        before.close("a", sight)
        after.close("a", sight)
    for line in lines:
        after.line("a", line)
    faults = after.faults + after.unsettled(lost)
    assert bool(faults) == bool(before.faults + before.unsettled(lost))
    return faults


@pytest.mark.parametrize("lines", [*permutations((OK, GONE, INVALID))])
def test_lines_may_come_in_any_order(lines: list[Outcome]) -> None:
    """A line is not taken for that of a request of which another line will be the only one that fits."""
    assert kept([LEFT_NONSENSE, LEFT, READ], lines) == []


def test_one_that_left_may_never_have_been_heard() -> None:
    assert kept([LEFT_NONSENSE, LEFT, READ, LEFT], [GONE, OK]) == []


@pytest.mark.parametrize(
    ("sights", "lines", "problem"),
    [
        ([READ], [GONE], "the server counts client_cancelled"),
        ([READ], [], "no line of the server's"),
        ([READ, READ], [OK], "no line of the server's"),
        ([LATE], [], "no line of the server's"),
        ([LEFT], [INVALID], "the server counts invalid"),
        ([LEFT, READ], [OK, OK, OK], "the log has a request that nobody made"),
        ([LEFT, LEFT, READ], [OK, INVALID], "the server counts invalid"),
        ([REFUSED, LEFT], [OK, OK], "the server counts ok"),
    ],
)
def test_what_does_not_agree_is_found(sights: list[Sight], lines: list[Outcome], problem: str) -> None:
    assert problem in str(kept(sights, lines))


def test_a_process_that_was_killed_writes_no_line() -> None:
    assert kept([READ, LEFT], [], lost=1) == []
    assert len(kept([READ, READ], [], lost=1)) == 1


def test_a_request_that_nobody_made_is_found_at_once() -> None:
    books = Books()
    books.line("whose", OK)
    assert books.fault_count == 1


def test_what_is_still_open_is_found() -> None:
    books = Books()
    books.open("a")
    assert books.unsettled(0) == ["'a' is still open"]
    books.line("a", OK)
    books.close("a", READ)
    assert books.unsettled(0) == []
