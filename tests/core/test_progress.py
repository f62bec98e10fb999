"""Everybody gets to the end, and nobody pays for more than the work of those who are older."""

import pytest

from tenure.core.budget import StepBudget
from tenure.core.lifecycle import State
from tenure.core.limits import Limits
from tenure.core.request import MOST_EVICTIONS
from tenure.outcomes import Outcome
from tests.core.scripts import ONE_ROW, UNBOUNDED, text
from tests.core.simulation import Ask, Simulation

at_both_depths = pytest.mark.parametrize("depth", [0, 1])
ROOMY = Limits(max_model_len=64, num_blocks=64, block_size=4, num_slots=4)
TIGHT = Limits(max_model_len=32, num_blocks=12, block_size=4, num_slots=6)


def run_with_newcomers(simulation: Simulation, first: Ask, newcomer: Ask, count: int) -> None:
    """One newcomer arrives after each step, until there were `count`."""
    simulation.submit(first)
    for _ in range(count):
        simulation.turn()
        simulation.submit(newcomer)
    simulation.run([])


@at_both_depths
@pytest.mark.parametrize("budget", [ONE_ROW, UNBOUNDED, StepBudget(tokens=4)])
def test_newcomers_do_not_hold_up_who_was_first(budget: StepBudget, depth: int) -> None:
    """With a budget for one row, each of the four slots has its turn at least every fourth step."""
    simulation = Simulation(ROOMY, budget, depth=depth)
    first = Ask((text(16),), max_tokens=10, ignore_eos=True)
    run_with_newcomers(simulation, first, Ask((text(8, 1),), max_tokens=10, ignore_eos=True), count=60)
    prompt_steps, decode_steps = 16 // 4, 10
    assert simulation.records[1].ended_at_step <= ROOMY.num_slots * (prompt_steps + decode_steps) + depth


@at_both_depths
def test_a_prompt_advances_in_every_step_that_it_shares_with_decoding(depth: int) -> None:
    simulation = Simulation(ROOMY, ONE_ROW, depth=depth)
    for variant in range(3):
        simulation.submit(Ask((text(4, variant),), max_tokens=40, ignore_eos=True))
    for _ in range(6):
        simulation.turn()
    begun = simulation.scheduler.counts.steps
    simulation.submit(Ask((text(32, 9),), max_tokens=1))
    simulation.run([])
    assert simulation.records[4].ended_at_step <= begun + 32 // ROOMY.block_size + 1 + depth


@at_both_depths
def test_a_prompt_advances_when_decoding_alone_would_use_up_the_budget(depth: int) -> None:
    limits = Limits(max_model_len=64, num_blocks=200, block_size=4, num_slots=9)
    simulation = Simulation(limits, StepBudget(tokens=8), depth=depth)
    for variant in range(8):
        simulation.submit(Ask((text(1, variant),), max_tokens=60, ignore_eos=True))
    for _ in range(5):
        simulation.turn()
    begun = simulation.scheduler.counts.steps
    simulation.submit(Ask((text(20, 9),), max_tokens=1))
    simulation.run([])
    assert simulation.records[9].ended_at_step <= begun + 10 + 1 + depth


@at_both_depths
def test_items_that_decode_take_turns_when_the_budget_pays_for_one(depth: int) -> None:
    simulation = Simulation(ROOMY, ONE_ROW, depth=depth)
    for variant in range(3):
        simulation.submit(Ask((text(4, variant),), max_tokens=30, ignore_eos=True))
    for _ in range(40):
        simulation.turn()
    produced = [len(record.tokens[0]) for record in simulation.records.values()]
    assert max(produced) - min(produced) <= 2
    simulation.run([])


@at_both_depths
def test_decoding_advances_however_many_prompts_arrive(depth: int) -> None:
    simulation = Simulation(ROOMY, StepBudget(tokens=8), depth=depth)
    first = Ask((text(4),), max_tokens=20, ignore_eos=True)
    run_with_newcomers(simulation, first, Ask((text(40, 3),), max_tokens=1), count=30)
    assert simulation.records[1].ended_at_step <= 1 + 20 + depth


@at_both_depths
@pytest.mark.parametrize(
    "budget", [StepBudget(tokens=8), StepBudget(tokens=100, seconds=8.5, per_token=1.0)], ids=["tokens", "seconds"]
)
@pytest.mark.parametrize("lacking", ["slot", "blocks"])
def test_decoding_leaves_nothing_to_prompts_that_cannot_start(lacking: str, budget: StepBudget, depth: int) -> None:
    """Eight decode with a budget for them all, and a ninth waits: for a slot, or for blocks."""
    scarce = {"num_slots": 8, "num_blocks": 200} if lacking == "slot" else {"num_slots": 9, "num_blocks": 8 * 7 + 3}
    simulation = Simulation(Limits(max_model_len=32, block_size=4, **scarce), budget, depth=depth)
    for variant in range(8):
        simulation.submit(Ask((text(2, variant),), max_tokens=30, ignore_eos=True))
    for _ in range(20):
        simulation.turn()
    simulation.submit(Ask((text(28, 9),), max_tokens=2, ignore_eos=True))
    sampled = simulation.scheduler.counts.sampled
    for _ in range(5):
        simulation.turn()
    assert simulation.scheduler.counts.sampled == sampled + 5 * 8
    assert simulation.scheduler.snapshot().items == {State.RUNNING: 8, State.WAITING: 1}
    simulation.run([])


@at_both_depths
def test_priority_decides_who_starts_first(depth: int) -> None:
    simulation = Simulation(Limits(max_model_len=16, num_blocks=8, block_size=4, num_slots=1), UNBOUNDED, depth=depth)
    for priority in (0, 5, -5, 0):
        simulation.submit(Ask((text(6),), max_tokens=3, priority=priority, ignore_eos=True))
    simulation.run([])
    finished = sorted(simulation.records, key=lambda number: simulation.records[number].ended_at_step)
    assert finished == [3, 1, 4, 2]


@at_both_depths
@pytest.mark.parametrize("budget", [ONE_ROW, UNBOUNDED])
def test_evictions_of_an_item_are_bounded_by_what_older_ones_need(budget: StepBudget, depth: int) -> None:
    simulation = Simulation(TIGHT, budget, depth=depth)
    for variant in range(10):
        simulation.submit(Ask((text(7, variant),), max_tokens=24, ignore_eos=True))
    simulation.run([])
    assert simulation.scheduler.counts.preemptions
    blocks = -(-31 // TIGHT.block_size)
    for number, record in simulation.records.items():
        assert record.request.items[0].preemptions <= blocks * (number - 1)


def test_nobody_starts_into_blocks_that_running_items_need_next() -> None:
    """Each running item can grow by a block before anybody would have to be evicted."""
    simulation = Simulation(Limits(max_model_len=16, num_blocks=6, block_size=4, num_slots=4), UNBOUNDED)
    for variant in range(3):
        simulation.submit(Ask((text(7, variant),), max_tokens=4, ignore_eos=True))
    simulation.turn()
    assert simulation.scheduler.snapshot().items == {State.RUNNING: 2, State.WAITING: 1}
    simulation.run([])
    assert simulation.scheduler.counts.preemptions == 0


def test_nobody_is_evicted_when_blocks_come_back_as_the_step_in_flight_lands() -> None:
    simulation = Simulation(Limits(max_model_len=30, num_blocks=8, block_size=2, num_slots=5), UNBOUNDED, depth=1)
    for length in (1, 4, 1):
        simulation.submit(Ask((text(length),), max_tokens=8, ignore_eos=True))
    for _ in range(4):
        simulation.turn()
    before = simulation.scheduler.counts.preemptions
    assert simulation.scheduler.snapshot().ledger.free == 0
    simulation.cancel(3, Outcome.CLIENT_CANCELLED)
    simulation.turn()
    assert simulation.scheduler.counts.preemptions == before
    simulation.run([])


@at_both_depths
def test_requests_end_in_order_of_age_when_only_one_fits(depth: int) -> None:
    limits = Limits(max_model_len=16, num_blocks=4, block_size=4, num_slots=4)
    simulation = Simulation(limits, UNBOUNDED, depth=depth)
    for variant in range(5):
        simulation.submit(Ask((text(9, variant),), max_tokens=7, ignore_eos=True))
    simulation.run([])
    assert [record.ended_at_step for record in simulation.records.values()] == sorted(
        record.ended_at_step for record in simulation.records.values()
    )


@at_both_depths
def test_an_item_that_fills_the_whole_pool_runs_to_its_end(depth: int) -> None:
    limits = Limits(max_model_len=100, num_blocks=5, block_size=4, num_slots=4)
    simulation = Simulation(limits, UNBOUNDED, depth=depth)
    simulation.submit(Ask((text(3),), max_tokens=99, ignore_eos=True))
    simulation.submit(Ask((text(3, 1),), max_tokens=99, ignore_eos=True))
    simulation.run([])
    assert [len(record.tokens[0]) for record in simulation.records.values()] == [17, 17]


def test_evicting_the_only_row_that_was_chosen_lets_another_run() -> None:
    """With a budget for one row, the youngest item's turn may come just when it has to give up its blocks."""
    simulation = Simulation(Limits(max_model_len=16, num_blocks=5, block_size=2, num_slots=2), ONE_ROW)
    for variant in range(2):
        simulation.submit(Ask((text(2, variant),), max_tokens=6, ignore_eos=True))
    while simulation.scheduler.busy:
        assert simulation.turn(), "nothing runs, and nothing will"
    assert simulation.scheduler.counts.preemptions
    assert all(record.ending is Outcome.OK for record in simulation.records.values())


def test_choices_of_one_prompt_compute_it_once() -> None:
    simulation = Simulation(ROOMY, UNBOUNDED)
    simulation.submit(Ask((text(17),), n=4, max_tokens=1))
    simulation.run([])
    counts = simulation.scheduler.counts
    assert counts.cached == 3 * 16
    assert counts.computed == 17 + 3
    first, *others = simulation.records[1].request.items
    names = list(map(id, first.hashes))
    assert len(names) == 4
    assert all(list(map(id, other.hashes)) == names for other in others), "a block of the prompt was named again"


def test_cache_hits_are_reported() -> None:
    simulation = Simulation(ROOMY, UNBOUNDED)
    for _ in range(2):
        simulation.submit(Ask((text(18), text(7), text(16)), max_tokens=3, ignore_eos=True))
        simulation.run([])
    assert simulation.records[1].cached == {0: 0, 1: 0, 2: 0}
    assert simulation.records[2].cached == {0: 16, 1: 4, 2: 12}


def test_the_logprobs_of_a_cached_prompt_are_computed_all_the_same() -> None:
    simulation = Simulation(ROOMY, UNBOUNDED)
    simulation.submit(Ask((text(18),), max_tokens=3))
    simulation.run([])
    simulation.submit(Ask((text(18),), max_tokens=3, prompt_logprobs=0))
    simulation.run([])
    assert simulation.records[2].cached == {0: 0}


@pytest.mark.parametrize("salt", ["", "theirs"])
def test_salts_share_nothing(salt: str) -> None:
    simulation = Simulation(ROOMY, UNBOUNDED)
    for own in ("mine", salt):
        simulation.submit(Ask((text(18),), max_tokens=2, salt=own))
        simulation.run([])
    assert simulation.scheduler.counts.cached == 0


@at_both_depths
def test_an_item_is_evicted_a_few_times_and_then_stays(depth: int) -> None:
    """Whenever it runs, somebody comes who matters more and needs all the blocks that there are."""
    limits = Limits(max_model_len=320, num_blocks=80, block_size=4, num_slots=4)
    simulation = Simulation(limits, StepBudget(tokens=1000), depth=depth)
    patient = simulation.submit(Ask((text(1),), max_tokens=120, ignore_eos=True, priority=1))
    item = simulation.records[patient].request.items[0]
    urgent = Ask((text(238, 1),), max_tokens=82, ignore_eos=True)
    while simulation.records[patient].ending is None:
        simulation.turn()
        others = sum(record.ending is None for record in simulation.records.values()) - 1
        if item.state is State.RUNNING and not others:
            simulation.submit(urgent)
    assert item.preemptions == MOST_EVICTIONS
    simulation.run([])


@at_both_depths
@pytest.mark.parametrize("scarce", [{"num_slots": 3}, {"num_blocks": 14}], ids=["slots", "blocks"])
def test_what_waits_takes_the_place_of_what_is_stalled(scarce: dict[str, int], depth: int) -> None:
    """As much of it as it needs, and the youngest first; those that come back are computed again."""
    limits = Limits(**{"max_model_len": 32, "num_blocks": 40, "block_size": 4, "num_slots": 8, **scarce})
    simulation = Simulation(limits, UNBOUNDED, depth=depth)
    for variant in range(3):
        simulation.submit(Ask((text(12, variant),), max_tokens=8, ignore_eos=True))
    simulation.turn()
    simulation.turn()
    for number in (1, 2, 3):
        simulation.stall(number)
    waiting = simulation.submit(Ask((text(9, 7),), max_tokens=4, ignore_eos=True))
    before = simulation.scheduler.counts.steps
    while simulation.records[waiting].ending is None:
        assert simulation.turn(), "nothing runs"
    assert simulation.scheduler.counts.steps <= before + 4 + 2 * depth
    states = [simulation.records[number].request.items[0].state for number in (1, 2, 3)]
    assert states == [State.STALLED, State.STALLED, State.PREEMPTED]
    assert simulation.scheduler.counts.preemptions == 1
    simulation.run([])


def test_nothing_that_is_stalled_is_evicted_in_vain() -> None:
    """What waits could not start with the blocks of the stalled item either: a running one has the rest."""
    simulation = Simulation(Limits(max_model_len=64, num_blocks=16, block_size=4, num_slots=4), UNBOUNDED)
    simulation.submit(Ask((text(8),), max_tokens=8, ignore_eos=True))
    simulation.submit(Ask((text(36, 1),), max_tokens=8, ignore_eos=True))
    simulation.turn()
    simulation.stall(1)
    simulation.submit(Ask((text(40, 2),), max_tokens=2))
    simulation.turn()
    assert simulation.scheduler.snapshot().items == {State.STALLED: 1, State.RUNNING: 1, State.WAITING: 1}
    simulation.run([])


@at_both_depths
def test_an_item_whose_caller_stops_reading_again_and_again_may_be_evicted_each_time(depth: int) -> None:
    """It has the only slot; whoever comes meanwhile is served at once."""
    simulation = Simulation(Limits(max_model_len=64, num_blocks=32, block_size=4, num_slots=1), UNBOUNDED, depth=depth)
    slow = simulation.submit(Ask((text(5),), max_tokens=40, ignore_eos=True))
    for variant in range(2 * MOST_EVICTIONS):
        while simulation.records[slow].request.items[0].state is not State.RUNNING:
            simulation.turn()
        simulation.turn()
        simulation.stall(slow)
        other = simulation.submit(Ask((text(9, variant),), max_tokens=2, ignore_eos=True))
        while simulation.records[other].ending is None:
            assert simulation.turn(), "nothing runs"
        simulation.resume(slow)
    simulation.run([])
    assert simulation.records[slow].ending is Outcome.OK
    assert simulation.scheduler.counts.preemptions == 2 * MOST_EVICTIONS


def test_stalled_items_make_room_for_those_that_run() -> None:
    """They keep their blocks until a running item would have to give up its own."""
    simulation = Simulation(TIGHT, UNBOUNDED)
    stalled = simulation.submit(Ask((text(20),), max_tokens=8, ignore_eos=True))
    simulation.turn()
    simulation.stall(stalled)
    small = simulation.submit(Ask((text(4, 1),), max_tokens=4, ignore_eos=True))
    while simulation.records[small].ending is None:
        simulation.turn()
    [item] = simulation.records[stalled].request.items
    assert item.state is State.STALLED
    large = simulation.submit(Ask((text(20, 2),), max_tokens=12, ignore_eos=True))
    while simulation.records[large].ending is None:
        assert simulation.turn()
    assert item.state is State.PREEMPTED
    simulation.run([])
    assert simulation.records[stalled].ending is Outcome.OK
