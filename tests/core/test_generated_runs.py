"""Runs made up by hypothesis: any mix of requests, pools, budgets, faults and messages keeps every promise."""

from collections.abc import Callable

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tenure.core.budget import StepBudget
from tenure.core.limits import Limits
from tenure.outcomes import Outcome
from tenure.pooling import PoolingTask
from tenure.sampling import RepetitionDetection
from tests.core.simulation import Ask, Simulation

# The same examples each time, so that a failure is the change's own; the soak profile looks for new ones.
generated = settings(
    deadline=None,
    database=None,
    max_examples=max(200, settings().max_examples),
    derandomize=settings.get_current_profile_name() != "soak",
    suppress_health_check=[HealthCheck.too_slow],
)

CAUSES = st.sampled_from([Outcome.CLIENT_CANCELLED, Outcome.DEADLINE, Outcome.ABORTED])

Action = Callable[[Simulation], object]

limits = st.one_of(
    st.builds(
        Limits,
        max_model_len=st.integers(8, 40),
        num_blocks=st.integers(4, 16),
        block_size=st.integers(2, 5),
        num_slots=st.integers(1, 5),
    ),
    st.builds(Limits, max_model_len=st.integers(8, 40), num_slots=st.integers(1, 5)),
)

budgets = st.builds(
    StepBudget,
    tokens=st.integers(4, 40),
    seconds=st.sampled_from([float("inf"), 0.0, 4.0, 12.0]),
    per_token=st.sampled_from([0.5, 1.0]),
    per_context=st.sampled_from([0.0, 0.1]),
)


@st.composite
def prompts(draw: st.DrawFn) -> tuple[int, ...]:
    """Few beginnings and few tokens, so that prompts often share blocks."""
    beginning = draw(st.sampled_from([(), (1, 2, 3, 4, 5, 6, 7, 8), (1, 2, 3, 4, 9, 9, 9, 9, 9, 9)]))
    return beginning + tuple(draw(st.lists(st.integers(1, 3), min_size=0 if beginning else 1, max_size=12)))


asks = st.builds(
    Ask,
    prompts=st.lists(prompts(), min_size=1, max_size=3).map(tuple),
    max_tokens=st.sampled_from([0, 1, 2, 5, 9, 30]),
    n=st.integers(1, 3),
    seed=st.integers(0, 3),
    priority=st.sampled_from([0, 0, 0, -1, 1]),
    salt=st.sampled_from(["", "", "a"]),
    min_tokens=st.sampled_from([0, 3]),
    ignore_eos=st.booleans(),
    stop_token_ids=st.sampled_from([(), (3, 4, 5)]),
    prompt_logprobs=st.sampled_from([None, None, None, 0]),
    repetition=st.sampled_from([None, None, RepetitionDetection(max_size=2)]),
    pooling=st.sampled_from([None, None, None, PoolingTask.EMBED, PoolingTask.TOKEN_EMBED]),
    begin_within=st.sampled_from([None, None, None, 0.0, 5.0, 20.0]),
    end_within=st.sampled_from([None, None, None, 0.0, 10.0, 40.0]),
)


def admissible(ask: Ask, limits: Limits) -> bool:
    """The gate refuses all others."""
    pooled = ask.pooling is not None
    served = pooled or limits.paged  # an encoder does nothing but pool
    return served and max(map(len, ask.prompts)) < limits.capacity + pooled


def submit(ask: Ask) -> Action:
    def act(simulation: Simulation) -> None:
        if admissible(ask, simulation.limits):
            simulation.submit(ask)

    return act


def some(number: int, simulation: Simulation) -> int:
    """A request number: mostly one that exists, now and then one that does not."""
    return number % (len(simulation.records) + 1) + 1


actions = st.one_of(
    asks.map(submit),
    asks.map(submit),
    st.integers(1, 4).map(lambda count: lambda it: [it.turn() for _ in range(count)]),
    st.integers(1, 4).map(lambda count: lambda it: [it.turn() for _ in range(count)]),
    st.just(Simulation.plan),
    st.tuples(st.integers(0, 9), CAUSES).map(lambda pair: lambda it: it.cancel(some(pair[0], it), pair[1])),
    st.tuples(st.integers(0, 9), st.integers(-1, 6)).map(lambda p: lambda it: it.finish_item(some(p[0], it), p[1])),
    st.integers(0, 9).map(lambda number: lambda it: it.stall(some(number, it))),
    st.integers(0, 9).map(lambda number: lambda it: it.resume(some(number, it))),
)


@generated
@given(
    limits=limits,
    budget=budgets,
    depth=st.integers(0, 2),
    prefix_caching=st.booleans(),
    broken=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 3)), max_size=2),
    script=st.lists(actions, min_size=1, max_size=25),
)
def test_any_run_keeps_every_promise(
    limits: Limits,
    budget: StepBudget,
    depth: int,
    prefix_caching: bool,
    broken: list[tuple[int, int]],
    script: list[Action],
) -> None:
    simulation = Simulation(limits, budget, depth=depth, prefix_caching=prefix_caching, broken=broken)
    for action in script:
        action(simulation)
        if len(simulation.runner.in_flight) > depth:
            simulation.land()
    simulation.run([])


@generated
@given(
    limits=limits,
    budget=budgets,
    first=asks,
    others=st.lists(asks, max_size=4),
    turns=st.lists(st.integers(0, 6), min_size=4, max_size=4),
)
def test_a_request_is_told_the_same_whoever_else_is_there(
    limits: Limits, budget: StepBudget, first: Ask, others: list[Ask], turns: list[int]
) -> None:
    """Also when the others leave in the midst of their work; `check_end` compares with the oracle."""
    simulation = Simulation(limits, budget, depth=1)
    if not admissible(first, limits):
        return
    simulation.submit(first)
    for other, count in zip(others, turns, strict=False):
        submit(other)(simulation)
        for _ in range(count):
            simulation.turn()
        if len(simulation.records) > 1:
            simulation.cancel(len(simulation.records), Outcome.CLIENT_CANCELLED)
    simulation.run([])
    if simulation.records[1].ending is Outcome.DEADLINE:
        return
    assert simulation.records[1].ending is Outcome.OK
    assert len(simulation.records[1].finishes) == len(first.prompts) * first.n
