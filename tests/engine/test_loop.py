"""The loop obeys its orders in order, tells no ending before it can be read in the snapshot, and rests when idle."""

import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise

import msgspec
import pytest

from tenure.core.budget import StepBudget
from tenure.core.ledger import LedgerError
from tenure.core.lifecycle import State
from tenure.core.limits import Limits
from tenure.core.plan import RowResult, StepPlan, StepResult
from tenure.core.report import Output
from tenure.core.request import Request, RequestSpec
from tenure.core.scheduler import Scheduler
from tenure.engine.estimator import StepCostEstimator
from tenure.engine.loop import EngineLoop
from tenure.engine.orders import (
    Add,
    Cancel,
    Ending,
    EngineSnapshot,
    Finish,
    Order,
    Progress,
    Resume,
    ShowHolders,
    Stall,
    Stop,
)
from tenure.engine.step_tuner import StepTuner
from tenure.outcomes import FinishReason, Outcome
from tenure.pooling import PoolingParams, PoolingTask
from tenure.sampling import SamplingParams
from tests.calls import calls_of
from tests.core.model_runner import ScriptedRunner

LIMITS = Limits(max_model_len=64, num_blocks=32, block_size=4, num_slots=4)


def added(request: Request) -> Add:
    return Add(lambda: request)


def request(number: int, *, length: int = 3, max_tokens: int = 4, n: int = 1, label: str = "") -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, seed=number)
    spec = RequestSpec(
        [[1 + number] * length], sampling, n=n, public_id=f"cmpl-{number}", label=label, arrived_at=100.0
    )
    return Request(number, spec)


class Clock:
    """Stands still unless told otherwise."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Told:
    step: int
    outputs: list[Output]
    ended: list[Ending]
    snapshot: EngineSnapshot
    """What was published last when this was told."""


@dataclass
class Port:
    """Records what the loop says; `on_emit` may answer it with orders."""

    snapshots: list[EngineSnapshot] = field(default_factory=list)
    shown: list[EngineSnapshot] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    on_emit: Callable[[Told], None] = lambda told: None

    def publish(self, snapshot: EngineSnapshot) -> None:
        self.snapshots.append(snapshot)

    def show(self, snapshot: EngineSnapshot) -> None:
        self.shown.append(snapshot)

    def emit(self, step: int, outputs: list[Output], ended: list[Ending]) -> None:
        told = Told(step, outputs, ended, self.snapshots[-1])
        self.told.append(told)
        self.on_emit(told)

    @property
    def ended(self) -> list[tuple[int, Outcome]]:
        return [(ending.number, ending.outcome) for told in self.told for ending in told.ended]

    @property
    def tokens(self) -> Counter[int]:
        """How many came for each request."""
        return Counter(output.request for told in self.told for output in told.outputs)


class ModelRunner(ScriptedRunner):
    """Fails as a whole in the steps of `fails`: at launch, or while landing, where it is none the wiser."""

    def __init__(self, clock: Clock, fails: dict[int, str] | None = None, limits: Limits = LIMITS) -> None:
        super().__init__(limits)
        self.plans: list[StepPlan] = []
        self._clock = clock
        self._fails = fails or {}

    def launch(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        if self._fails.get(plan.number) == "launch":
            raise RuntimeError("secret detail of the launch")
        super().launch(plan)

    def land(self) -> StepResult:
        self._clock.now += 0.01
        result = super().land()
        if self._fails.get(result.number) == "land":
            raise RuntimeError("secret detail of the landing")
        return result


class CountingScheduler(Scheduler):
    """Counts how often it is asked for a plan, and finds a fault in the ledger when told to."""

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.plans = 0
        self.audits = 0
        self.broken = False
        self.on_audit: Callable[[], None] = lambda: None

    def plan(self, budget: StepBudget) -> StepPlan | None:
        self.plans += 1
        return super().plan(budget)

    def audit(self) -> None:
        self.audits += 1
        self.on_audit()
        super().audit()
        if self.broken:
            raise LedgerError("a block is missing")


class Rig:
    """A loop with everything around it."""

    def __init__(
        self,
        fails: dict[int, str] | None = None,
        max_tokens: int = 64,
        clock: "Clock | None" = None,
        orders: "queue.Queue[Order] | None" = None,
        limits: Limits = LIMITS,
    ) -> None:
        self.clock = clock or Clock()
        self.scheduler = CountingScheduler(limits)
        self.runner = ModelRunner(self.clock, fails, limits)
        self.orders: queue.Queue[Order] = orders or queue.Queue()
        self.port = Port()
        self.loop = EngineLoop(
            self.scheduler,
            self.runner,
            self.orders,
            self.port,
            StepTuner(StepCostEstimator(), max_tokens=max_tokens, step_time=0.0),
            clock=self.clock,
        )

    def run(self, *orders: Order, ends: int = 0) -> None:
        """Run with `orders`; once all their requests, or `ends` requests, have ended, the loop is stopped."""
        wanted = len(self.port.ended) + (ends or sum(isinstance(order, Add) for order in orders))
        answer = self.port.on_emit

        def on_emit(told: Told) -> None:
            answer(told)
            if len(self.port.ended) >= wanted:
                self.orders.put(Stop())

        self.port.on_emit = on_emit
        for order in orders:
            self.orders.put(order)
        self.loop.run()
        self.port.on_emit = answer
        assert not self.scheduler.busy


def test_requests_run_to_their_end() -> None:
    rig = Rig()
    rig.run(added(request(1, max_tokens=4)), added(request(2, n=3, max_tokens=2)))
    assert sorted(rig.port.ended) == [(1, Outcome.OK), (2, Outcome.OK)]
    assert rig.port.tokens == {1: 4, 2: 6}
    last = rig.port.snapshots[-1].scheduler
    assert last.counts.sampled == 10
    assert last.finish_reasons == {FinishReason.LENGTH: 4}
    assert last.ledger.conserved
    assert (last.requests, last.ledger.leased) == (0, 0)


def test_snapshots_come_before_words_about_endings() -> None:
    """Whoever has seen an ending finds it in the ledger; and the first snapshot comes before anything else."""
    rig = Rig()
    rig.run(added(request(1)), added(request(2, max_tokens=2)), added(request(3)), Cancel(3, Outcome.CLIENT_CANCELLED))
    assert rig.port.snapshots[0].scheduler.requests == 0
    open_requests = 3
    for told in rig.port.told:
        open_requests -= len(told.ended)
        assert told.snapshot.scheduler.requests == open_requests
        assert told.snapshot.conserved
    assert open_requests == 0


def test_orders_are_obeyed_in_order() -> None:
    """A cancel that follows its request finds it; one that comes before is counted and does not reach ahead."""
    rig = Rig()
    rig.run(Cancel(1, Outcome.ABORTED), added(request(1)), added(request(2)), Cancel(2, Outcome.DEADLINE), Finish(9, 0))
    assert rig.port.ended == [(2, Outcome.DEADLINE), (1, Outcome.OK)]
    assert rig.port.tokens == {1: 4}
    assert rig.port.snapshots[-1].scheduler.counts.unmatched == 2


def due(number: int, *, begin_by: float | None = None, end_by: float | None = None, **more: int) -> Request:
    asked = request(number, **more)
    asked.spec = replace(asked.spec, due=(begin_by, end_by))
    return asked


def test_what_is_late_gets_no_further_step() -> None:
    """A step takes 0.01 s here: five fit before the first is due, and the other goes on alone."""
    rig = Rig()
    rig.run(added(due(1, end_by=100.05, max_tokens=50)), added(request(2, max_tokens=9)))
    assert rig.port.ended == [(1, Outcome.DEADLINE), (2, Outcome.OK)]
    assert [len(plan.rows) for plan in rig.runner.plans] == [2] * 5 + [1] * 4
    late = next(ended for told in rig.port.told for ended in told.ended if ended.number == 1)
    assert "longer than it may" in late.message


def test_what_waits_too_long_gets_no_step_at_all() -> None:
    rig = Rig()
    running = [added(request(number, max_tokens=20)) for number in range(1, 5)]
    rig.run(*running, added(due(5, begin_by=100.05)), added(due(6, begin_by=100.05, end_by=200.0)))
    assert {number for number, outcome in rig.port.ended if outcome is Outcome.DEADLINE} == {5, 6}
    assert set(rig.port.tokens) == {1, 2, 3, 4}


def test_a_limit_on_waiting_does_not_concern_what_has_begun() -> None:
    rig = Rig()
    rig.run(added(due(1, begin_by=100.02, max_tokens=20)))
    assert rig.port.ended == [(1, Outcome.OK)]


class Ticking(Clock):
    """Time passes whenever somebody looks."""

    def __call__(self) -> float:
        self.now += 0.01
        return super().__call__()


def test_a_loop_that_has_nothing_to_compute_wakes_for_a_deadline() -> None:
    """All that is open is stalled; only time passes."""
    rig = Rig(clock=Ticking())
    rig.run(added(due(1, end_by=100.1)), Stall(1))
    assert rig.port.ended == [(1, Outcome.DEADLINE)]
    assert rig.runner.plans == []


class Watched(queue.Queue[Order]):
    """Notes how long it is waited for, and has the answer at once."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def get(self, block: bool = True, timeout: float | None = None) -> Order:
        if timeout is not None:
            self.waits.append(timeout)
            self.put(Cancel(1, Outcome.ABORTED))
        return super().get(block, timeout)


def test_no_deadline_is_too_far_off_to_be_waited_for() -> None:
    """The longest time that the operating system can wait is far below the largest number."""
    orders = Watched()
    rig = Rig(orders=orders)
    rig.run(added(due(1, end_by=1e300)), Stall(1))
    assert rig.port.ended == [(1, Outcome.ABORTED)]
    assert 0 < max(orders.waits) < threading.TIMEOUT_MAX


def test_a_stalled_request_gets_no_step_until_it_is_resumed() -> None:
    rig = Rig()

    def pace(told: Told) -> None:
        if told.step == 3 and told.outputs:
            rig.orders.put(Stall(1))
        if told.step == 8 and told.outputs:
            rig.orders.put(Resume(1))

    rig.port.on_emit = pace
    rig.run(added(request(1, max_tokens=10)), added(request(2, max_tokens=15)))
    assert [len(plan.rows) for plan in rig.runner.plans] == [2] * 3 + [1] * 5 + [2] * 7
    assert rig.port.tokens == {1: 10, 2: 15}


def test_of_a_stalled_request_no_more_texts_are_read_until_it_is_resumed() -> None:
    rig = Rig(limits=Limits(max_model_len=64, num_slots=4), max_tokens=12)
    params, pooling = SamplingParams(max_tokens=0), PoolingParams(task=PoolingTask.EMBED)
    pooled = Request(1, RequestSpec([[1, 2, 3]] * 30, params, pooling=pooling))
    other = Request(2, RequestSpec([[4] * 12] * 3, params, pooling=pooling))
    read: list[int] = []

    def pace(told: Told) -> None:
        read.append(rig.port.tokens[1])
        if told.step == 2 and told.outputs:
            rig.orders.put(Stall(1))
            rig.orders.put(added(other))
        if told.step == 5 and told.outputs:
            rig.orders.put(Resume(1))

    rig.port.on_emit = pace
    rig.run(added(pooled), ends=2)
    assert read[:7] == [4, 8, 8, 8, 8, 12, 16]
    assert rig.port.tokens == {1: 30, 2: 3}


def test_a_cancel_ends_a_request_within_the_step() -> None:
    rig = Rig()

    def cancel(told: Told) -> None:
        if told.step == 3 and told.outputs:
            rig.orders.put(Cancel(1, Outcome.CLIENT_CANCELLED))

    rig.port.on_emit = cancel
    rig.run(added(request(1, max_tokens=50)), added(request(2, max_tokens=20)))
    assert rig.port.ended == [(1, Outcome.CLIENT_CANCELLED), (2, Outcome.OK)]
    assert rig.port.tokens == {1: 3, 2: 20}
    assert [len(plan.rows) for plan in rig.runner.plans] == [2] * 3 + [1] * 17


def test_an_item_that_needs_no_more_tokens_is_finished() -> None:
    rig = Rig()

    def finish(told: Told) -> None:
        if any(output.index == 1 for output in told.outputs):
            rig.orders.put(Finish(1, 1))

    rig.port.on_emit = finish
    rig.run(added(request(1, n=2, max_tokens=9)))
    assert rig.port.ended == [(1, Outcome.OK)]
    counts = Counter(output.index for told in rig.port.told for output in told.outputs)
    assert counts == {0: 9, 1: 1}


@pytest.mark.parametrize("where", ["launch", "land"])
def test_a_step_that_fails_ends_its_own_requests_alone(where: str) -> None:
    """With an error that gives nothing away; the loop goes on with the others."""
    rig = Rig({2: where})
    messages: list[str] = []

    def add(told: Told) -> None:
        messages.extend(ending.message for ending in told.ended if ending.outcome is not Outcome.OK)
        if [ending.number for ending in told.ended] == [1]:
            rig.orders.put(added(request(2)))

    rig.port.on_emit = add
    rig.run(added(request(1, max_tokens=9)), ends=2)
    rig.scheduler.audit()
    assert rig.port.ended == [(1, Outcome.ENGINE_ERROR), (2, Outcome.OK)]
    [message] = messages
    assert message
    assert "secret" not in message
    assert rig.port.tokens == {1: 1, 2: 4}
    assert rig.port.snapshots[-1].conserved


def test_requests_that_wait_survive_a_step_that_fails() -> None:
    rig = Rig({1: "launch"}, max_tokens=8)
    rig.run(*(added(request(number, length=8)) for number in range(1, 4)))
    outcomes = dict(rig.port.ended)
    assert outcomes == {1: Outcome.ENGINE_ERROR, 2: Outcome.OK, 3: Outcome.OK}


def test_a_result_that_answers_another_plan_ends_the_loop() -> None:
    """That is our bug, and nothing that the ledger says could be believed afterwards."""

    class Confused(ModelRunner):
        def land(self) -> StepResult:
            result = super().land()
            return StepResult(result.number, [RowResult(row.slot + 1, row.generation) for row in result.rows])

    rig = Rig()
    rig.loop._runner = Confused(rig.clock)
    rig.orders.put(added(request(1)))
    with pytest.raises(LedgerError):
        rig.loop.run()


def test_an_idle_loop_rests() -> None:
    """It waits for orders without asking for plans, and an order that has no work in it wakes it just once."""
    rig = Rig()
    woken = queue.Queue[int]()

    class Orders(queue.Queue[Order]):
        def get(self, block: bool = True, timeout: float | None = None) -> Order:
            if block and timeout is None and self.empty():
                woken.put(rig.scheduler.plans)
            return super().get(block, timeout)

    orders = Orders()
    rig.loop._orders = orders
    thread = threading.Thread(target=rig.loop.run, daemon=True)
    thread.start()
    assert woken.get(timeout=30) == 0
    orders.put(Cancel(5, Outcome.ABORTED))
    assert woken.get(timeout=30) == 1
    orders.put(added(request(1, max_tokens=3)))
    assert woken.get(timeout=30) == 5  # three steps, and the question that found nothing to do
    assert not rig.loop.progress.runs
    orders.put(Stop())
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert woken.empty()
    assert rig.scheduler.plans == 5


def test_a_stop_is_obeyed_in_the_middle_of_work() -> None:
    rig = Rig()
    rig.port.on_emit = lambda told: rig.orders.put(Stop()) if told.step == 2 else None
    rig.orders.put(added(request(1, max_tokens=50)))
    rig.loop.run()
    assert rig.port.tokens == {1: 2}


def test_progress_names_the_step_that_runs() -> None:
    rig = Rig()
    seen: list[Progress] = []
    launch = rig.runner.launch

    def watched(plan: StepPlan) -> None:
        seen.append(rig.loop.progress)
        launch(plan)

    rig.runner.launch = watched  # type: ignore[method-assign]
    rig.run(added(request(1, max_tokens=2)))
    assert seen == [Progress(1, runs=True), Progress(2, runs=True)]
    assert rig.loop.progress == Progress(2, runs=False)


class Resting(queue.Queue[Order]):
    """Time passes when it is waited for; a loop that would wait for ever is stopped."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def get(self, block: bool = True, timeout: float | None = None) -> Order:
        if block and timeout is None and self.empty():
            return Stop()
        if block and timeout is not None:
            self._clock.now += timeout
        return super().get(block=False)


def resting() -> Rig:
    clock = Clock()
    return Rig(clock=clock, orders=Resting(clock))


def rest(rig: Rig, *orders: Order) -> None:
    """Run until there is nothing to do any more."""
    for order in orders:
        rig.orders.put(order)
    rig.loop.run()


def test_a_ledger_that_does_not_add_up_is_told() -> None:
    """And stays told, until someone starts the engine anew."""
    rig = resting()
    rest(rig, added(request(1)))
    assert rig.port.snapshots[-1].conserved
    rig.scheduler.broken = True
    rest(rig, added(request(2)))
    assert not rig.port.snapshots[-1].conserved
    rig.scheduler.broken = False
    rest(rig, added(request(3)))
    assert [ending for ending, _ in rig.port.ended] == [1, 2, 3]
    assert not rig.port.snapshots[-1].conserved


def test_the_audit_is_made_when_idle_and_once_a_second_at_most() -> None:
    """Each change is followed by one, if need be when the second is over."""
    rig = resting()
    times: list[float] = []
    rig.scheduler.on_audit = lambda: times.append(rig.clock.now)
    for number in range(1, 12):
        rig.clock.now += 0.3
        rest(rig, added(request(number, max_tokens=20)))
        assert len(times) == number
    assert all(later - earlier >= 0.999 for earlier, later in pairwise(times))


def test_answers_and_orders_come_before_the_audit() -> None:
    rig = resting()
    audits: list[int] = []

    def go_on(told: Told) -> None:
        if told.ended:
            audits.append(rig.scheduler.audits)
            if len(audits) < 3:
                rig.orders.put(added(request(1 + len(audits))))

    rig.port.on_emit = go_on
    rest(rig, added(request(1)))
    assert audits == [0, 0, 0]
    assert rig.scheduler.audits == 1


def test_holders_are_shown_with_what_they_hold() -> None:
    """When asked for, as a step begins: those that have not ended, oldest request first, at most a page of them."""
    rig = resting()
    rig.port.on_emit = lambda _: rig.orders.put(ShowHolders())
    rest(rig, added(request(1, length=5, max_tokens=3, label="mine")), *(added(request(n, n=30)) for n in range(2, 5)))
    second, last = rig.port.shown[0], rig.port.shown[-1]
    assert second.scheduler.counts.steps == 2
    row = second.holders[0]
    assert (row.holder, row.request, row.label, row.state) == ("item 1", "cmpl-1", "mine", "running")
    assert (row.blocks, row.age_s) == (2, 0.01)
    assert len(second.holders) == 64
    waiting = [row for row in second.holders if row.state == "waiting"]
    assert waiting
    assert all(row.blocks == 0 for row in waiting)
    assert last.holders == []
    published, audits = len(rig.port.snapshots), rig.scheduler.audits
    rest(rig, ShowHolders())
    assert not any(snapshot.holders for snapshot in rig.port.snapshots)
    assert (len(rig.port.snapshots), rig.scheduler.audits) == (published + 1, audits), "nothing has changed"


def test_what_has_started_is_shown_while_its_step_is_computed() -> None:
    rig = resting()
    seen: list[EngineSnapshot] = []
    launch = rig.runner.launch

    def watched(plan: StepPlan) -> None:
        seen.append(rig.port.snapshots[-1])
        launch(plan)

    rig.runner.launch = watched  # type: ignore[method-assign]
    rest(rig, added(request(1, max_tokens=1)), ShowHolders())
    assert [snapshot.scheduler.items for snapshot in seen] == [{State.RUNNING: 1}]
    assert [[row.state for row in snapshot.holders] for snapshot in rig.port.shown] == [["running"]]


def test_a_snapshot_costs_the_same_however_many_run() -> None:
    """Counted in calls: what is published is counted when it happens, and not when it is published."""

    def cost(slots: int) -> int:
        rig = Rig(limits=msgspec.structs.replace(LIMITS, num_slots=slots, num_blocks=1024), max_tokens=10_000)
        costs: list[int] = []

        def look(told: Told) -> None:
            if told.step == 2:
                costs.append(calls_of(rig.loop._publish))
                rig.orders.put(Stop())

        rig.port.on_emit = look
        rig.orders.put(added(request(1, n=slots, max_tokens=50)))
        rig.loop.run()
        assert rig.port.snapshots[-1].scheduler.items == {State.RUNNING: slots}
        return costs[0]

    assert cost(4) == cost(64) < 60
