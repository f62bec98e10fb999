"""The engine loop: receive -> plan -> launch -> land, over and over, in the engine's main thread.

At depth 0 a step lands before the next is planned. At depth 1 the next one is planned and launched while it computes:
what happens meanwhile waits for the running step and the one handed over, and for no more.

It owns the scheduler, with the ledger in it, and the runner; no other thread touches them. Orders come from the I/O
thread through a bounded queue, outputs and endings go back through `Port`. After each round the loop publishes an
immutable snapshot, and only then tells of endings: whoever has seen an ending finds it in the snapshot.
"""

import logging
import queue
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tenure.core.deadlines import Deadlines
from tenure.core.plan import RowResult, StepPlan, StepResult
from tenure.core.report import Output
from tenure.core.request import Request
from tenure.core.scheduler import Scheduler
from tenure.engine.audit import IdleAudit
from tenure.engine.kv_exchange import KVExchange
from tenure.engine.ledger_report import holder_rows
from tenure.engine.orders import (
    Add,
    Cancel,
    Change,
    Ending,
    EngineSnapshot,
    Finish,
    Order,
    Port,
    Progress,
    Resume,
    ShowHolders,
    Stall,
    Stop,
)
from tenure.engine.stats import EngineStats
from tenure.engine.step_tuner import StepTuner
from tenure.outcomes import Outcome

logger = logging.getLogger("tenure.engine")

_STEP_FAILED = "the engine failed to compute a step of this request"


class ModelRunner(Protocol):
    """Computes steps, in the order of their launching; those between `launch` and `land` are in flight."""

    def launch(self, plan: StepPlan) -> None: ...

    def land(self) -> StepResult: ...


@dataclass(slots=True)
class _Launched:
    plan: StepPlan
    at: float
    failed: bool = False  # the runner does not know of it


class EngineLoop:
    """See the module's docstring. `clock` is that of `Request.arrived_at`, in seconds."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        orders: "queue.Queue[Order]",
        port: Port,
        tuner: StepTuner,
        clock: Callable[[], float] = time.monotonic,
        depth: int = 0,
        exchange: KVExchange | None = None,
    ) -> None:
        self.progress = Progress(0, runs=False)
        self._in_flight: deque[_Launched] = deque(maxlen=1 + depth)
        self._landed_at = 0.0
        self._scheduler = scheduler
        self._exchange = exchange
        self._deadlines = Deadlines()
        self._runner = runner
        self._orders = orders
        self._port = port
        self._tuner = tuner
        self._stats = EngineStats()
        self._clock = clock
        self._audit = IdleAudit(scheduler, clock)
        self._holders_requested = False

    def run(self) -> None:
        """Run until a `Stop` arrives."""
        self._publish()
        idle = True
        while self._receive(wait=idle):
            self._expire()
            if self._exchange is not None:
                self._exchange.begin()
            plan = self._scheduler.plan(self._tuner.budget())
            if self._holders_requested:  # shown after planning, since this step may be all that an item needs
                self._holders_requested = False
                self._port.show(self._snapshot(holders=True))
            if plan is not None:
                self._launch(plan)
            idle = not self._in_flight
            if self._in_flight and (plan is None or len(self._in_flight) == self._in_flight.maxlen):
                self._land()

    def _receive(self, wait: bool) -> bool:
        """Carry out all orders that have arrived, waiting for one if told to; False after a `Stop`."""
        ended: list[Request] = []
        changed = False
        try:
            order = self._next_order() if wait else self._orders.get_nowait()
            while not isinstance(order, Stop):
                if isinstance(order, ShowHolders):
                    self._holders_requested = True
                else:
                    ended += self._apply(order)
                    changed = True
                order = self._orders.get_nowait()
        except queue.Empty:
            if changed:
                self._emit([], ended)
            return True
        return False

    def _next_order(self) -> Order:
        """Wait for an order. A ledger that has become idle is audited meanwhile: whoever was told an ending has it."""
        if (due := self._audit.due_in) is not None:
            try:
                return self._orders.get(timeout=due)
            except queue.Empty:
                self._audit.run()
                self._publish()
        return self._orders.get(timeout=self._wait_timeout())

    def _wait_timeout(self) -> float | None:
        """Seconds to wait for an order: until the next deadline, an hour at most; None when there is no deadline."""
        deadline = self._deadlines.next
        return None if deadline is None else min(max(0.0, deadline - self._clock()), 3600.0)

    def _expire(self) -> None:
        """Drop the requests whose time is up before they get another step."""
        if self._deadlines.next is None or not (expired := self._deadlines.expired(self._clock())):
            return
        ended = [self._scheduler.cancel(request.number, Outcome.DEADLINE, message) for request, message in expired]
        self._emit([], [request for requests in ended for request in requests])

    def _apply(self, order: Change) -> list[Request]:
        match order:
            case Add(make):
                self._scheduler.add(request := make())
                self._deadlines.add(request)
                self._stats.admit(request)
                if self._exchange:
                    self._exchange.add(request)
            case Cancel(number, outcome):
                return self._scheduler.cancel(number, outcome)
            case Finish(number, item):
                return self._scheduler.finish_item(number, item)
            case Stall(number):
                self._scheduler.stall(number)
            case Resume(number):
                self._scheduler.resume(number)
            case _:
                assert self._exchange is not None
                return self._exchange.apply(order)
        return []

    def _launch(self, plan: StepPlan) -> None:
        self._tuner.prepare()
        launched = _Launched(plan, self._clock())
        self._in_flight.append(launched)
        self.progress = Progress(self._in_flight[0].plan.number, runs=True)
        self._note_start(plan, launched.at)
        try:
            self._runner.launch(plan)
        except Exception:
            logger.exception("step %d failed", plan.number)
            launched.failed = True

    def _land(self) -> None:
        """Wait for the oldest step in flight, and book what came of it."""
        launched = self._in_flight[0]
        plan = launched.plan
        effects = self._scheduler.land(self._result_of(launched))
        self._in_flight.popleft()
        self.progress = Progress(plan.number + len(self._in_flight), runs=bool(self._in_flight))
        now = self._clock()
        seconds, self._landed_at = now - max(launched.at, self._landed_at), now
        self._tuner.learn(plan, seconds)
        self._stats.step(plan, seconds)
        self._emit(effects.outputs, effects.ended, plan.number)

    def _note_start(self, plan: StepPlan, now: float) -> None:
        """Items that were just started are shown as running from now on: the step may be all that they need."""
        if not plan.starts:
            return
        self._stats.start(self._scheduler.items_of(plan.number)[-len(plan.starts) :], now)
        self._publish()

    def _result_of(self, launched: _Launched) -> StepResult:
        """If the runner itself fails, the requests of this step end with an error, and no others."""
        plan = launched.plan
        if not launched.failed:
            try:
                return self._runner.land()
            except Exception:
                logger.exception("step %d failed", plan.number)
        return StepResult(plan.number, [RowResult(r.slot, r.generation, error=_STEP_FAILED) for r in plan.rows])

    def _emit(self, outputs: list[Output], ended: list[Request], step: int = 0) -> None:
        now = self._clock()
        if self._exchange is not None:
            self._exchange.note(outputs, ended)
        self._stats.output(outputs, now)
        endings = [Ending.of(request, self._stats.end(request, now)) for request in ended]
        self._audit.note_change()
        self._publish()
        if outputs or endings:
            self._port.emit(step, outputs, endings)

    def _publish(self) -> None:
        self._port.publish(self._snapshot())

    def _snapshot(self, *, holders: bool = False) -> EngineSnapshot:
        snapshot = self._scheduler.snapshot()
        conserved = self._audit.conserved and snapshot.ledger.conserved
        rows = holder_rows(self._scheduler, self._clock()) if holders else []
        return EngineSnapshot(snapshot, conserved, self._stats.snapshot(), rows)
