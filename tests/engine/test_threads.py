"""When the engine computes with one thread, and when with all."""

import itertools
import random
from collections.abc import Callable

import pytest

from tenure.core.plan import Row, StepPlan
from tenure.engine.estimator import StepCostEstimator
from tenure.engine.step_tuner import StepTuner
from tenure.engine.threads import ThreadGovernor

STEP = 0.05


class Machine:
    """Steps cost what the number of threads makes of them at the time."""

    def __init__(self, most: int, cost: Callable[[int], float]) -> None:
        self.threads = most
        self.cost = cost
        self.used: list[int] = []
        self.share = 1.0
        """Of the time of the cores that it uses, what the process gets."""
        self._computed = 0.0
        self.governor = ThreadGovernor(most, self._set, lambda: self._computed)

    def _set(self, threads: int) -> None:
        self.threads = threads

    def run(self, steps: int) -> list[int]:
        """The threads of each step."""
        begin = len(self.used)
        for _ in range(steps):
            self.governor.prepare()
            self.used.append(self.threads)
            seconds = self.cost(self.threads)
            self._computed += seconds * self.threads * self.share
            self.governor.learn(STEP, seconds)
        return self.used[begin:]


def quiet(threads: int) -> float:
    return STEP if threads == 2 else 1.7 * STEP


def crowded(threads: int) -> float:
    return 5 * STEP if threads == 2 else 2 * STEP


def test_on_a_quiet_machine_trials_are_rare_from_the_beginning() -> None:
    machine = Machine(2, quiet)
    used = machine.run(4000)
    assert 1 not in used[: int(30 / STEP)]
    assert 0 < used.count(1) <= 3 * 4000 * STEP / 30


def test_trials_that_change_nothing_cost_a_hundredth_of_the_time() -> None:
    machine = Machine(2, quiet)
    machine.share = 0.8
    used = machine.run(4000)
    assert 0 < used.index(1) < 4 / STEP
    trials = [len(list(group)) for threads, group in itertools.groupby(used) if threads == 1]
    assert set(trials) == {3}, "one to settle, two to measure"
    cost = used.count(1) * (quiet(1) - quiet(2))
    assert 0.008 < cost / (4000 * STEP) < 0.012
    assert machine.threads == 2


def test_on_a_crowded_machine_one_thread_takes_over_within_seconds() -> None:
    machine = Machine(2, quiet)
    machine.run(100)
    machine.cost, machine.share = crowded, 0.5
    used = machine.run(400)
    assert used[-100:].count(2) <= 4
    machine.cost, machine.share = quiet, 1.0
    used = machine.run(2000)
    assert used[-100:].count(1) <= 4


def test_equal_speeds_change_nothing() -> None:
    machine = Machine(4, lambda threads: STEP)
    machine.run(2000)
    assert machine.governor.threads == machine.threads == 4


@pytest.mark.parametrize("noise", [0.6, 1.4])
def test_one_odd_step_does_not_decide(noise: float) -> None:
    odd = itertools.cycle([1.0] * 9 + [noise])
    machine = Machine(2, lambda threads: quiet(threads) * next(odd))
    machine.run(3000)
    assert machine.used.count(2) > 0.9 * 3000


@pytest.mark.parametrize("better", [1, 2])
def test_short_steps_that_differ_much_are_told_apart(better: int) -> None:
    noise = random.Random(7)

    def cost(threads: int) -> float:
        return (0.2 if threads == better else 0.25) * STEP * noise.uniform(0.5, 1.5)

    machine = Machine(2, cost)
    machine.share = 0.8
    machine.run(int(10 / 0.2 / STEP))
    used = machine.run(int(100 / 0.2 / STEP))
    assert used.count(better) > 0.95 * len(used)


def test_what_trials_cost_does_not_count_as_what_steps_cost() -> None:
    machine = Machine(2, quiet)
    machine.share = 0.8
    estimator = StepCostEstimator()
    tuner = StepTuner(estimator, max_tokens=512, step_time=0.1, governor=machine.governor)
    plan = StepPlan(0, [], [Row(slot=0, generation=0, start=0, count=8, new_blocks=[], samples=False)])
    for _ in range(1000):
        tuner.prepare()
        tuner.learn(plan, machine.cost(machine.threads))
        assert estimator.predict(8, 36.0) == pytest.approx(STEP)


def test_a_single_core_is_left_alone() -> None:
    machine = Machine(1, lambda threads: STEP)
    machine.run(500)
    assert machine.used == [1] * 500
