"""The cost of a step grows with what runs, not with what waits or is over. Calls are counted, not seconds."""

import pytest

from tenure.core.lifecycle import State
from tenure.core.limits import Limits
from tenure.core.scheduler import Scheduler
from tenure.engine.ledger_report import holder_rows
from tenure.outcomes import Outcome
from tenure.pooling import PoolingTask
from tests.calls import calls_of
from tests.core.model_runner import ScriptedRunner
from tests.core.scripts import UNBOUNDED, text
from tests.core.simulation import Ask

LIMITS = Limits(max_model_len=64, num_blocks=64, block_size=4, num_slots=4)
ASK = Ask((text(6),), max_tokens=30, ignore_eos=True)


class Engine:
    """A scheduler with four items that run and `waiting` that do not, unless it is asked for something else."""

    def __init__(self, waiting: int, *asks: Ask) -> None:
        self.scheduler = Scheduler(LIMITS)
        self.runner = ScriptedRunner(LIMITS)
        for number, ask in enumerate(asks or [ASK] * (LIMITS.num_slots + waiting)):
            self.scheduler.add(ask.request(number))
        self.step()

    def step(self) -> int:
        """One round; returns how many calls the scheduler made in it."""
        calls = calls_of(lambda: self._plan())
        return calls + calls_of(lambda: self._land())

    def _plan(self) -> None:
        self.plan = self.scheduler.plan(UNBOUNDED)

    def _land(self) -> None:
        assert self.plan is not None
        self.runner.launch(self.plan)
        self.scheduler.land(self.runner.land())


def steps(engine: Engine, count: int = 8) -> list[int]:
    return [engine.step() for _ in range(count)]


def test_a_step_costs_the_same_with_10_and_with_10000_waiting() -> None:
    assert steps(Engine(10)) == steps(Engine(10_000))


def test_a_step_costs_the_same_after_9000_of_them_have_left() -> None:
    few, many = Engine(10), Engine(10_000)
    for number in range(500, 9_500):
        many.scheduler.cancel(number, Outcome.CLIENT_CANCELLED)
    assert steps(few) == steps(many)
    assert many.scheduler.snapshot().requests == LIMITS.num_slots + 1_000


def test_starting_from_a_long_queue_costs_the_same() -> None:
    """Also when those at its head have left."""
    few, many = Engine(100), Engine(10_000)
    for engine in (few, many):
        for number in (*range(4, 8), 0, 1):
            engine.scheduler.cancel(number, Outcome.CLIENT_CANCELLED)
    assert steps(few) == steps(many)
    assert few.scheduler.snapshot().ledger == many.scheduler.snapshot().ledger


def test_leaving_a_long_queue_is_cheap_on_average() -> None:
    def leave(engine: Engine, count: int) -> None:
        for number in range(10, 10 + count):
            engine.scheduler.cancel(number, Outcome.CLIENT_CANCELLED)

    few, many = Engine(1_000), Engine(10_000)
    cost_few = calls_of(lambda: leave(few, 900)) / 900
    cost_many = calls_of(lambda: leave(many, 9_000)) / 9_000
    assert cost_many == pytest.approx(cost_few, rel=0.2)


def test_a_step_costs_the_same_when_nearly_all_of_a_request_is_over() -> None:
    """8,000 texts, of which four are read at a time; the ledger's rows and a snapshot cost the same as well."""
    texts = tuple((1 + number % 20, 1 + number // 20 % 20, 1 + number // 400) for number in range(8_000))
    engine = Engine(0, Ask(texts, pooling=PoolingTask.CLASSIFY))

    def costs() -> tuple[list[int], int, int]:
        return (
            steps(engine),
            calls_of(lambda: holder_rows(engine.scheduler, 0.0)),
            calls_of(engine.scheduler.snapshot),
        )

    early = costs()
    steps(engine, 1_900)
    assert engine.scheduler.snapshot().items[State.WAITING] < 400
    assert costs() == early


def test_stalling_costs_the_same_however_many_items_of_the_request_wait() -> None:
    def cost(texts: int) -> int:
        engine = Engine(0, Ask(tuple((1 + number % 20, 2, 3) for number in range(texts)), max_tokens=4))
        return calls_of(lambda: engine.scheduler.stall(0)) + calls_of(lambda: engine.scheduler.resume(0))

    assert cost(10) == cost(8_000)
