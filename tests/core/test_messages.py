"""Late, early, duplicate and unknown messages are counted, and change nothing."""

import msgspec
import pytest

from tenure.core.ledger import LedgerError
from tenure.core.limits import Limits
from tenure.core.plan import RowResult, StepResult
from tenure.core.report import SchedulerSnapshot
from tenure.outcomes import Outcome
from tests.core.scripts import UNBOUNDED, text
from tests.core.simulation import Ask, Simulation

LIMITS = Limits(max_model_len=64, num_blocks=16, block_size=4, num_slots=4)
ASK = Ask((text(6), text(5, 1)), max_tokens=5, ignore_eos=True)


def simulate(depth: int = 0) -> Simulation:
    simulation = Simulation(LIMITS, UNBOUNDED, depth=depth)
    simulation.submit(ASK)
    return simulation


def settled(simulation: Simulation) -> SchedulerSnapshot:
    """What the scheduler shows, apart from the count of messages that meant nothing."""
    snapshot = simulation.scheduler.snapshot()
    return msgspec.structs.replace(snapshot, counts=msgspec.structs.replace(snapshot.counts, unmatched=0))


def unmatched(simulation: Simulation) -> int:
    return simulation.scheduler.counts.unmatched


def run_out(simulation: Simulation) -> None:
    while simulation.turn():
        pass
    simulation.check_end()


def test_second_cancel_keeps_the_first_outcome() -> None:
    simulation = simulate(depth=1)
    simulation.plan()
    simulation.cancel(1, Outcome.DEADLINE)
    before = settled(simulation), unmatched(simulation)
    simulation.cancel(1, Outcome.CLIENT_CANCELLED)
    assert (settled(simulation), unmatched(simulation)) == (before[0], before[1] + 1)
    run_out(simulation)
    assert simulation.records[1].ending is Outcome.DEADLINE


@pytest.mark.parametrize("depth", [0, 1])
def test_cancel_of_an_unknown_or_ended_request(depth: int) -> None:
    simulation = simulate(depth)
    run_out(simulation)
    before = settled(simulation), unmatched(simulation)
    simulation.cancel(1, Outcome.CLIENT_CANCELLED)
    simulation.cancel(99, Outcome.CLIENT_CANCELLED)
    assert (settled(simulation), unmatched(simulation)) == (before[0], before[1] + 2)


def test_a_cancel_that_comes_first_leaves_no_marker() -> None:
    """The connection's messages are ordered, so such a cancel names a request that never was; it must not kill one."""
    simulation = Simulation(LIMITS, UNBOUNDED)
    simulation.cancel(1, Outcome.CLIENT_CANCELLED)
    simulation.submit(ASK)
    run_out(simulation)
    assert simulation.records[1].ending is Outcome.OK


@pytest.mark.parametrize(("number", "index"), [(1, 0), (1, 2), (1, -1), (2, 0)])
def test_finish_of_what_has_no_output_or_does_not_exist(number: int, index: int) -> None:
    simulation = simulate()
    before = settled(simulation)
    simulation.finish_item(number, index)
    assert (settled(simulation), unmatched(simulation)) == (before, 1)
    run_out(simulation)
    assert simulation.records[1].ending is Outcome.OK


@pytest.mark.parametrize("depth", [0, 1])
def test_finish_twice_and_after_a_cancel(depth: int) -> None:
    simulation = simulate(depth)
    while not simulation.records[1].tokens[0]:
        simulation.turn()
    simulation.finish_item(1, 0)
    before = settled(simulation), unmatched(simulation)
    simulation.finish_item(1, 0)
    assert (settled(simulation), unmatched(simulation)) == (before[0], before[1] + 1)
    simulation.cancel(1, Outcome.CLIENT_CANCELLED)
    simulation.finish_item(1, 1)
    assert unmatched(simulation) == before[1] + 2
    run_out(simulation)


def test_a_finish_for_every_item_ends_the_request_well() -> None:
    simulation = simulate()
    while not all(simulation.records[1].tokens):
        simulation.turn()
    simulation.finish_item(1, 0)
    assert simulation.records[1].ending is None
    simulation.finish_item(1, 1)
    assert simulation.records[1].ending is Outcome.OK
    simulation.check_end()


def test_landing_of_an_unknown_step() -> None:
    simulation = simulate()
    before = settled(simulation)
    effects = simulation.scheduler.land(StepResult(7, [RowResult(0, 1, [3])]))
    assert (effects.outputs, effects.ended) == ([], [])
    assert (settled(simulation), unmatched(simulation)) == (before, 1)


def test_landing_of_rows_that_were_not_planned_raises_and_changes_nothing() -> None:
    simulation = simulate()
    simulation.plan()
    before = settled(simulation)
    good = simulation.runner.land()
    stranger = msgspec.structs.replace(good.rows[0], generation=9)
    for rows in ([], good.rows[:1], [*good.rows, good.rows[0]], good.rows[::-1], [stranger, *good.rows[1:]]):
        with pytest.raises(LedgerError, match="do not match"):
            simulation.scheduler.land(StepResult(good.number, rows))
        assert settled(simulation) == before
        simulation.scheduler.audit()
    assert len(simulation.scheduler.land(good).outputs) == 2


def test_landing_out_of_order_raises_and_changes_nothing() -> None:
    simulation = simulate(depth=1)
    simulation.plan()
    simulation.plan()
    before = settled(simulation)
    first, second = simulation.runner.land(), simulation.runner.land()
    with pytest.raises(LedgerError, match="before an older one"):
        simulation.scheduler.land(second)
    assert settled(simulation) == before
    assert simulation.scheduler.land(first).outputs
    assert simulation.scheduler.land(second).outputs


def test_a_request_number_that_is_taken_is_refused_and_changes_nothing() -> None:
    simulation = simulate()
    before = settled(simulation)
    with pytest.raises(LedgerError, match="exists already"):
        simulation.scheduler.add(ASK.request(1))
    assert settled(simulation) == before
    run_out(simulation)


def test_a_number_may_be_used_again_once_its_request_has_ended() -> None:
    simulation = simulate()
    simulation.cancel(1, Outcome.CLIENT_CANCELLED)
    del simulation.records[1]
    simulation.submit(ASK)
    run_out(simulation)
    assert simulation.records[1].ending is Outcome.OK


def test_one_hundred_thousand_unknown_cancels_leave_nothing_behind() -> None:
    simulation = Simulation(LIMITS, UNBOUNDED)
    for number in range(100_000):
        assert simulation.scheduler.cancel(number, Outcome.CLIENT_CANCELLED) == []
    assert unmatched(simulation) == 100_000
    assert not simulation.scheduler.busy
