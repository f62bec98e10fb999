"""A request of many items gets its share of the engine, and no more while others wait."""

import pytest

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.outcomes import Outcome
from tenure.pooling import PoolingTask
from tests.core.scripts import text
from tests.core.simulation import Ask, Simulation

WHOLE = Limits(max_model_len=64, num_slots=64)
PAGED = Limits(max_model_len=64, num_blocks=400, block_size=4, num_slots=64)
BUDGET = StepBudget(tokens=40)
"""Four texts of ten tokens in a step."""

both_kinds = pytest.mark.parametrize("limits", [WHOLE, PAGED], ids=["encoder", "decoder"])


def texts(count: int, length: int = 10, *, first: int = 0) -> tuple[tuple[int, ...], ...]:
    """Texts that begin differently, so that none finds another's blocks in the cache."""
    return tuple((first + number + 1, *text(length - 1, number)) for number in range(count))


def rerank(count: int, *, first: int = 0, priority: int = 0) -> Ask:
    return Ask(texts(count, first=first), pooling=PoolingTask.CLASSIFY, priority=priority)


@both_kinds
def test_a_small_request_does_not_wait_for_a_large_one(limits: Limits) -> None:
    simulation = Simulation(limits, BUDGET)
    simulation.submit(rerank(500))
    for _ in range(3):
        simulation.turn()
    begun = simulation.scheduler.counts.steps
    small = simulation.submit(rerank(1, first=1000))
    simulation.run([])
    assert simulation.records[small].ended_at_step <= begun + 2
    assert simulation.records[1].ended_at_step > 100


@both_kinds
def test_two_requests_share_the_engine_evenly(limits: Limits) -> None:
    """The second needs a quarter of what the first does: both advance alike until it is done."""
    simulation = Simulation(limits, BUDGET)
    simulation.submit(rerank(200))
    simulation.submit(rerank(50, first=1000))
    simulation.run([])
    steps_of_both = 2 * 50 * 10 / BUDGET.tokens
    assert abs(simulation.records[2].ended_at_step - steps_of_both) <= 2


@both_kinds
def test_many_small_requests_do_not_starve_a_large_one(limits: Limits) -> None:
    """A newcomer a step takes a quarter of it; the large one still gets the rest."""
    simulation = Simulation(limits, BUDGET)
    simulation.submit(rerank(60))
    for number in range(60):
        simulation.turn()
        if simulation.records[1].ending is None:
            simulation.submit(rerank(1, first=1000 + number))
    simulation.run([])
    assert simulation.records[1].ended_at_step <= 60 / 3 + 3


LONG = Limits(max_model_len=1024, num_blocks=4000, block_size=4, num_slots=64)
uses = pytest.mark.parametrize("pooling", [None, PoolingTask.CLASSIFY], ids=["generates", "reads"])


def prompts(count: int, length: int, pooling: PoolingTask | None, *, first: int = 0) -> Ask:
    return Ask(texts(count, length, first=first), max_tokens=1, pooling=pooling)


@uses
@pytest.mark.parametrize("count", [1, 50])
def test_a_short_prompt_does_not_wait_for_long_ones(count: int, pooling: PoolingTask | None) -> None:
    simulation = Simulation(LONG, BUDGET)
    simulation.submit(prompts(count, 800, pooling))
    for _ in range(3):
        simulation.turn()
    begun = simulation.scheduler.counts.steps
    small = simulation.submit(prompts(1, 10, pooling, first=1000))
    simulation.run([])
    assert simulation.records[small].ended_at_step <= begun + 2
    assert simulation.records[1].ended_at_step <= (count * 800 + 10) / BUDGET.tokens + 3


@uses
def test_short_prompts_do_not_starve_a_long_one(pooling: PoolingTask | None) -> None:
    """A newcomer a step, each as long as half a step: the long one has the other half of each."""
    simulation = Simulation(LONG, BUDGET)
    simulation.submit(prompts(1, 400, pooling))
    for number in range(30):
        simulation.turn()
        if simulation.records[1].ending is None:
            simulation.submit(prompts(1, BUDGET.tokens // 2, pooling, first=1000 + number))
    simulation.run([])
    assert simulation.records[1].ended_at_step <= 2 * 400 / BUDGET.tokens + 3


def test_nothing_is_held_back_for_what_cannot_start() -> None:
    """The second prompt finds no blocks until the first is done, which has the whole of each step meanwhile."""
    simulation = Simulation(Limits(max_model_len=1024, num_blocks=220, block_size=4, num_slots=64), BUDGET)
    simulation.submit(prompts(1, 800, None))
    simulation.submit(prompts(1, 400, None, first=1000))
    simulation.run([])
    assert simulation.records[1].ended_at_step <= 800 / BUDGET.tokens + 1
    assert simulation.records[2].ended_at_step <= 1200 / BUDGET.tokens + 2


@both_kinds
def test_cancelling_the_large_one_leaves_nothing_to_compute(limits: Limits) -> None:
    simulation = Simulation(limits, BUDGET)
    large = simulation.submit(rerank(500))
    for _ in range(3):
        simulation.turn()
    computed = simulation.scheduler.counts.computed
    simulation.cancel(large, Outcome.CLIENT_CANCELLED)
    assert not simulation.scheduler.busy
    assert not simulation.turn()
    assert simulation.scheduler.counts.computed == computed


@both_kinds
def test_a_failed_text_takes_its_siblings_with_it(limits: Limits) -> None:
    simulation = Simulation(limits, BUDGET, broken=[(2, 0)])
    simulation.submit(rerank(100))
    other = simulation.submit(rerank(3, first=1000))
    simulation.run([])
    assert simulation.records[1].ending is Outcome.ENGINE_ERROR
    assert simulation.records[1].ended_at_step == 2
    assert simulation.records[other].ending is Outcome.OK


def test_a_text_that_is_longer_than_any_step_is_read_alone() -> None:
    simulation = Simulation(WHOLE, StepBudget(tokens=8, seconds=0.0, per_token=1.0))
    simulation.run([Ask((text(64), text(3, 1), text(64, 2)), pooling=PoolingTask.EMBED)])
    assert simulation.scheduler.counts.steps == 3
