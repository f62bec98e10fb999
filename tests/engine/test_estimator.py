"""Step costs are learned well enough to keep steps near their time, whatever the mix, and are never absurd."""

import math
import random

import pytest

from tenure.engine.estimator import StepCostEstimator

FIXED, PER_TOKEN, PER_CONTEXT = 0.004, 0.0008, 2e-7
"""Seconds, as of a small model on a CPU."""

Step = tuple[int, float]
DECODE: Step = (1, 500.0)
PREFILL: Step = (512, 512 * 257.0)


def cost(step: Step) -> float:
    return FIXED + PER_TOKEN * step[0] + PER_CONTEXT * step[1]


def predicted(estimator: StepCostEstimator, step: Step) -> float:
    return estimator.fixed + estimator.per_token * step[0] + estimator.per_context * step[1]


def mixed(dice: random.Random) -> Step:
    tokens = dice.choice((1, 1, 4, 16, 64, 128, 512))
    return tokens, tokens * dice.uniform(1, 3000)


def taught(steps: int = 400, noise: float = 0.0) -> StepCostEstimator:
    dice, estimator = random.Random(1), StepCostEstimator()
    for _ in range(steps):
        step = mixed(dice)
        estimator.observe(*step, cost(step) * (1 + noise * dice.uniform(-1, 1)))
    return estimator


def sane(estimator: StepCostEstimator) -> bool:
    figures = (estimator.fixed, estimator.per_token, estimator.per_context)
    return all(math.isfinite(figure) and figure >= 0 for figure in figures) and estimator.per_token > 0


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_it_learns_what_steps_cost(noise: float) -> None:
    estimator = taught(noise=noise)
    for step in ((64, 64 * 500.0), (256, 256 * 500.0), PREFILL, (16, 16 * 2000.0)):
        assert predicted(estimator, step) == pytest.approx(cost(step), rel=0.1 + noise)


def test_the_first_steps_are_taken_at_their_word() -> None:
    """Two of each kind, as at start-up, are enough to be near."""
    estimator = StepCostEstimator()
    for _ in range(2):
        estimator.observe(*DECODE, cost(DECODE))
        estimator.observe(*PREFILL, cost(PREFILL))
    assert predicted(estimator, PREFILL) == pytest.approx(cost(PREFILL), rel=0.5)


def test_a_long_run_of_small_steps_does_not_unteach_large_ones() -> None:
    """Or the first prompt after an hour of chat would stop everyone."""
    estimator = taught()
    before = predicted(estimator, PREFILL)
    dice = random.Random(2)
    for _ in range(20_000):
        estimator.observe(*DECODE, cost(DECODE) * dice.uniform(0.7, 1.5))
    assert predicted(estimator, PREFILL) == pytest.approx(before, rel=0.25)
    assert predicted(estimator, DECODE) == pytest.approx(cost(DECODE), rel=0.5)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    estimator = taught()
    dice = random.Random(3)
    for _ in range(200):
        step = mixed(dice)
        estimator.observe(*step, 3 * cost(step))
    assert predicted(estimator, PREFILL) == pytest.approx(3 * cost(PREFILL), rel=0.15)


@pytest.mark.parametrize("step", [DECODE, PREFILL, (64, 64 * 500.0)])
@pytest.mark.parametrize("factor", [10, 1000])
def test_one_slow_step_is_got_over(step: Step, factor: int) -> None:
    """A process that was stopped for a while must not crawl for long afterwards."""
    estimator = taught()
    estimator.observe(*step, factor * cost(step))
    assert sane(estimator)
    dice = random.Random(4)
    for _ in range(60):
        usual = mixed(dice)
        estimator.observe(*usual, cost(usual))
    assert predicted(estimator, PREFILL) == pytest.approx(cost(PREFILL), rel=0.2)


def test_steps_become_long_again_after_one_was_interrupted() -> None:
    """Also when steps are only as long as the estimate allows, so that it sees no long ones meanwhile."""
    estimator = taught()

    def prompt_step() -> int:
        budget = estimator.budget(2048, 0.1)
        count = max(16, budget.affordable(0, budget.seconds))
        estimator.observe(count, count * (count + 1) / 2, cost((count, count * (count + 1) / 2)))
        return count

    before = prompt_step()
    estimator.observe(*PREFILL, 500.0)
    counts = [prompt_step() for _ in range(20)]
    assert counts[-1] > 0.7 * before


def test_it_is_never_absurd() -> None:
    """Whatever it is told: steps that took no time, were huge, or came from a clock that jumped."""
    dice, estimator = random.Random(5), StepCostEstimator()
    for _ in range(5000):
        tokens = dice.choice((1, 2, 100, 8192))
        seconds = dice.choice((0.0, 1e-9, 0.01, 5.0, 3600.0))
        estimator.observe(tokens, tokens * dice.choice((1.0, 100.0, 1e5)), seconds)
        assert sane(estimator)
        budget = estimator.budget(2048, 0.1)
        assert 0 <= budget.seconds <= 0.1


def test_what_a_budget_pays_for() -> None:
    """About as many tokens as fit into the time of a step."""
    estimator = taught()
    budget = estimator.budget(2048, 0.1)
    assert budget.tokens == 2048
    assert budget.seconds == pytest.approx(0.1 - FIXED, rel=0.1)
    assert budget.seconds / (budget.per_token + budget.per_context * 500) == pytest.approx(
        (0.1 - FIXED) / (PER_TOKEN + PER_CONTEXT * 500), rel=0.2
    )


def test_without_a_step_time_tokens_alone_count() -> None:
    budget = taught().budget(512, 0.0)
    assert (budget.tokens, budget.seconds) == (512, math.inf)
