"""Prompts that another engine has computed: fetched, refused, lost, given up, whatever happens around them."""

import pytest

from tenure.core.limits import Limits
from tenure.outcomes import Outcome
from tests.core.fetching import Course, FetchingSimulation
from tests.core.scripts import CHUNKED, text
from tests.core.simulation import Ask

LIMITS = Limits(max_model_len=40, num_blocks=24, block_size=4, num_slots=3, set_aside=10)
ASKS = (
    Ask((text(17),), claims=(1,), max_tokens=4, ignore_eos=True),
    Ask((text(9, 1), text(14, 2)), claims=(2, 3), n=2, max_tokens=3, ignore_eos=True, at=1.0),
    Ask((text(12, 5),), max_tokens=5, ignore_eos=True, at=1.0),
    Ask((text(17),), claims=(4,), max_tokens=4, ignore_eos=True, at=2.0),
    Ask((text(10, 6), text(12, 7)), claims=(5, 0), max_tokens=4, ignore_eos=True, at=2.0, priority=-1),
)
CLAIMS = 5


def simulation(course: Course, depth: int, *, recompute: bool = True) -> FetchingSimulation:
    return FetchingSimulation(LIMITS, CHUNKED, [course] * CLAIMS, depth=depth, recompute=recompute)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("course", Course)
def test_every_course_gives_the_text_of_one_engine(course: Course, depth: int) -> None:
    run = simulation(course, depth)
    run.run(ASKS)
    assert all(record.ending is Outcome.OK for record in run.records.values())
    assert bool(run.fetched) == (course is Course.WELL)


def test_what_was_fetched_is_not_computed() -> None:
    run = simulation(Course.WELL, 0)
    run.run(ASKS[:1])
    assert run.records[1].request.computed == 17 - 16 + 3
    assert run.records[1].cached == {0: 16}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("course", [Course.REFUSED, Course.NOT_CONFIRMED, Course.GIVEN_UP, Course.CONFIRMED_EARLY])
def test_what_is_lost_ends_its_request_where_that_is_wanted(course: Course, depth: int) -> None:
    run = simulation(course, depth, recompute=False)
    run.run(ASKS)
    endings = [record.ending for record in run.records.values()]
    assert endings[2] is Outcome.OK
    assert set(endings[:2]) == {Outcome.KV_LOST}


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("course", Course)
def test_an_abort_at_every_event(course: Course, depth: int) -> None:
    plain = simulation(course, depth)
    plain.run(ASKS)
    for event in range(plain.events):
        run = simulation(course, depth)

        def abort(now: int, run: FetchingSimulation = run, event: int = event) -> None:
            if now == event:
                run.cancel(event % len(ASKS) + 1, Outcome.CLIENT_CANCELLED)

        run.interrupt, run.check_from = abort, event
        run.run(ASKS)


def test_a_prompt_that_the_cache_has_is_not_fetched() -> None:
    run = simulation(Course.WELL, 0)
    run.run((ASKS[0], Ask((text(17),), claims=(4,), max_tokens=4, ignore_eos=True, at=500.0)))
    assert len(run.fetched) == 1
    assert run.records[2].cached == {0: 16}


def test_blocks_of_a_transfer_without_an_end_are_quarantined_and_keep_nobody_from_running() -> None:
    """Ten of the blocks are lost to transfers for good, and an item that needs all others runs to its end."""
    limits = Limits(max_model_len=200, num_blocks=24, block_size=4, num_slots=3, set_aside=10)
    run = FetchingSimulation(limits, CHUNKED, [Course.WELL] * 3)
    for claim in (1, 2, 3):
        run.submit(Ask((text(17, claim),), claims=(claim,), ignore_eos=True))
        run.fetches.grant(claim)
    begun = run.fetches.begin()
    assert [len(fetch.blocks) for fetch in begun] == [4, 4]
    for number in (1, 2, 3):
        run.cancel(number, Outcome.CLIENT_CANCELLED)
    assert run.scheduler.snapshot().ledger.quarantined == 8
    run._actions.clear()
    whole = run.submit(Ask((text(40),), max_tokens=50, ignore_eos=True))
    while run.turn():
        pass
    assert run.records[whole].ending is Outcome.OK
    assert len(run.records[whole].tokens[0]) == limits.capacity - 40 == 16
    for fetch in begun:
        run.fetches.end_transfer(fetch.transfer)
    assert run.scheduler.snapshot().ledger.quarantined == 0
    run.check_end()


def test_messages_that_fit_nothing_are_counted_and_change_nothing() -> None:
    run = simulation(Course.WELL, 0)
    run.run(ASKS[:1])
    before = run.fetches.unmatched
    run.fetches.grant(1)
    run.fetches.refuse(99)
    run.fetches.end_transfer(1)
    run.fetches.settle(1, confirmed=True)
    run.fetches.settle(99, confirmed=False)
    assert run.fetches.unmatched == before + 5
    run.check_end()
