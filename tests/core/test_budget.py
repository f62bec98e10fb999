import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tenure.core.budget import RemainingBudget, StepBudget

generated = settings(deadline=None, database=None, derandomize=True)
rates = st.floats(1e-9, 1.0)
starts = st.integers(0, 200_000)
counts = st.integers(1, 50_000)
PLENTY = 1_000_000


@generated
@given(rates, st.just(0.0) | rates, starts, counts)
def test_affordable_is_the_inverse_of_cost(per_token: float, per_context: float, start: int, count: int) -> None:
    budget = StepBudget(tokens=PLENTY, seconds=1.0, per_token=per_token, per_context=per_context)
    cost = budget.cost(start, count)
    assert budget.affordable(start, cost * (1 + 1e-9)) == count
    assert budget.affordable(start, cost * (1 - 1e-6 / count)) == count - 1


@generated
@given(st.just(0.0) | rates, st.just(0.0) | rates, starts, st.floats(0.0, 1e6))
def test_the_affordable_fits_and_one_more_does_not(
    per_token: float, per_context: float, start: int, seconds: float
) -> None:
    assume(per_token or per_context)
    budget = StepBudget(tokens=PLENTY, seconds=1.0, per_token=per_token, per_context=per_context)
    count = budget.affordable(start, seconds)
    assert budget.cost(start, count) <= seconds * (1 + 1e-9)
    assert count == PLENTY or budget.cost(start, count + 1) >= seconds * (1 - 1e-9)


@generated
@given(rates, rates, starts, counts, counts)
def test_the_cost_of_two_chunks_is_that_of_both_at_once(
    per_token: float, per_context: float, start: int, first: int, second: int
) -> None:
    budget = StepBudget(tokens=PLENTY, per_token=per_token, per_context=per_context)
    chunks = budget.cost(start, first) + budget.cost(start + first, second)
    assert chunks == pytest.approx(budget.cost(start, first + second))


def test_the_cost_counts_each_tokens_own_context() -> None:
    budget = StepBudget(tokens=9, per_token=100.0, per_context=1.0)
    assert budget.cost(10, 3) == 3 * 100.0 + 11 + 12 + 13


@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_nothing_is_affordable_without_seconds(seconds: float) -> None:
    assert StepBudget(tokens=9, seconds=1.0, per_token=0.1).affordable(0, seconds) == 0


@pytest.mark.parametrize(
    "budget",
    [
        StepBudget(tokens=9),
        StepBudget(tokens=9, per_token=0.1, per_context=0.1),
        StepBudget(tokens=9, seconds=1.0),
        StepBudget(tokens=9, seconds=1.0, per_token=5e-324, per_context=5e-324),
    ],
)
def test_without_a_price_or_a_limit_only_tokens_count(budget: StepBudget) -> None:
    assert budget.affordable(1_000, budget.seconds) == 9
    assert RemainingBudget(budget, 0.0).take(1_000, 50) == 9


def test_what_is_held_back_can_be_spent_once_it_is_opened() -> None:
    remaining = RemainingBudget(StepBudget(tokens=100, seconds=10.0, per_token=0.1), held_back=0.25)
    assert remaining.take(0, 100) == 75
    assert remaining.take(0, 1) == 0
    remaining.open_reserve()
    assert remaining.take(0, 100) == 25
    remaining.open_reserve()
    assert remaining.take(0, 100) == 0


def test_seconds_are_held_back_as_well_as_tokens() -> None:
    remaining = RemainingBudget(StepBudget(tokens=1_000, seconds=10.0, per_token=0.1), held_back=0.25)
    assert remaining.take(0, 1_000) == 75
    remaining.open_reserve()
    assert remaining.take(0, 1_000) == 25


def test_an_infinite_budget_can_hold_something_back_too() -> None:
    remaining = RemainingBudget(StepBudget(tokens=8, per_token=0.1), held_back=0.25)
    assert remaining.take(0, 100) == 6
    remaining.open_reserve()
    assert remaining.take(0, 100) == 2


def test_the_least_is_granted_beyond_the_seconds_but_not_beyond_the_tokens() -> None:
    remaining = RemainingBudget(StepBudget(tokens=6, seconds=0.0, per_token=1.0), held_back=0.0)
    assert remaining.take(0, 10) == 0
    assert remaining.take(0, 10, at_least=4) == 4
    assert remaining.take(0, 10, at_least=4) == 2
    assert remaining.take(0, 10, at_least=4) == 0


def test_no_more_than_wanted_is_granted_and_what_was_overspent_is_missing_later() -> None:
    remaining = RemainingBudget(StepBudget(tokens=100, seconds=10.0, per_token=1.0), held_back=0.5)
    assert remaining.take(0, 3) == 3
    assert remaining.take(0, 7, at_least=4) == 4
    remaining.open_reserve()
    assert remaining.take(0, 100) == 3


@generated
@given(
    st.builds(
        StepBudget,
        tokens=st.integers(0, 50),
        seconds=st.floats(0, 20) | st.just(math.inf),
        per_token=st.floats(0, 1),
        per_context=st.floats(0, 0.1),
    ),
    st.sampled_from([0.0, 0.25]),
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 30), st.integers(0, 8)), max_size=12),
)
def test_a_purse_never_grants_more_tokens_than_the_budget_has(
    budget: StepBudget, held_back: float, wishes: list[tuple[int, int, int]]
) -> None:
    remaining = RemainingBudget(budget, held_back)
    granted = 0
    for number, (start, wanted, least) in enumerate(wishes):
        if number == len(wishes) // 2:
            remaining.open_reserve()
        count = remaining.take(start, wanted, least)
        assert 0 <= count <= wanted
        granted += count
    assert granted <= budget.tokens
