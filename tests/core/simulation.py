"""The scheduler in a virtual world: a scripted runner, a virtual clock, and all that can be checked after each event.

An event is one call of the scheduler: an arrival, a plan (which is launched at once), a landing, or an injected
message. `Simulation.interrupt`, if set, is called with the number of each scripted event just before it happens; what
it injects is checked like any other event.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tenure.core.budget import StepBudget
from tenure.core.deadlines import Deadlines
from tenure.core.lifecycle import State
from tenure.core.limits import Limits
from tenure.core.plan import Row, StepPlan, StepResult
from tenure.core.report import Effects, Output
from tenure.core.request import MOST_EVICTIONS, Item, Request, RequestSpec
from tenure.core.scheduler import Scheduler
from tenure.outcomes import FinishReason, Outcome
from tenure.pooling import PoolingParams, PoolingTask
from tenure.sampling import RepetitionDetection, SamplingParams
from tests.core.model_runner import BURSTS, EMPTY, ScriptedRunner, draw, follow, logprobs_at, pooled, prompt_logprobs

END_TOKEN = 0


@dataclass(frozen=True)
class Ask:
    """A request of the script, and when it arrives on the virtual clock."""

    prompts: tuple[tuple[int, ...], ...]
    max_tokens: int = 8
    n: int = 1
    seed: int = 0
    at: float = 0.0
    priority: int = 0
    salt: str = ""
    min_tokens: int = 0
    ignore_eos: bool = False
    stop_token_ids: tuple[int, ...] = ()
    prompt_logprobs: int | None = None
    repetition: RepetitionDetection | None = None
    begin_within: float | None = None
    end_within: float | None = None
    claims: tuple[int, ...] = ()
    handover: bool = False
    pooling: PoolingTask | None = None
    """Read the prompts, and do not go on with them; of the above only times, `priority` and `salt` count then."""

    def __post_init__(self) -> None:
        if self.pooling is not None:
            object.__setattr__(self, "n", 1)

    def request(self, number: int, at: float = 0.0) -> Request:
        begin_by = None if self.begin_within is None else at + self.begin_within
        end_by = None if self.end_within is None else at + self.end_within
        if self.pooling is not None:
            return Request(
                number,
                RequestSpec(
                    self.prompts,
                    SamplingParams(max_tokens=0),
                    priority=self.priority,
                    cache_salt=self.salt,
                    pooling=PoolingParams(task=self.pooling),
                    arrived_at=at,
                    due=(begin_by, end_by),
                ),
            )
        sampling = SamplingParams(
            max_tokens=self.max_tokens,
            min_tokens=self.min_tokens,
            seed=self.seed,
            eos_token_ids=(END_TOKEN,),
            ignore_eos=self.ignore_eos,
            stop_token_ids=self.stop_token_ids,
            prompt_logprobs=self.prompt_logprobs,
            repetition_detection=self.repetition,
        )
        return Request(
            number,
            RequestSpec(
                self.prompts,
                sampling,
                n=self.n,
                plan_ahead=self.seed < BURSTS,
                priority=self.priority,
                cache_salt=self.salt,
                claims=self.claims,
                handover=self.handover,
                arrived_at=at,
                due=(begin_by, end_by),
            ),
        )

    def expected(self, index: int, capacity: int) -> tuple[list[int], FinishReason, int | None]:
        """What item `index` must produce, whatever happens around it."""
        if self.pooling is not None:
            return [], FinishReason.STOP, None
        prompt, choice = self.prompts[index // self.n], index % self.n
        text = EMPTY
        for token in prompt:
            text = follow(text, token)
        produced: list[int] = []
        limit = min(self.max_tokens, capacity - len(prompt))
        while len(produced) < limit:
            token = draw(self.seed, choice, len(prompt) + len(produced), text)
            text = follow(text, token)
            produced.append(token)
            if len(produced) > self.min_tokens and token == END_TOKEN and not self.ignore_eos:
                return produced, FinishReason.STOP, None
            if len(produced) > self.min_tokens and token in self.stop_token_ids:
                return produced, FinishReason.STOP, token
            if self.repetition is not None and self._repeats(produced, self.repetition):
                return produced, FinishReason.REPETITION, None
        return produced, FinishReason.LENGTH, None

    @staticmethod
    def _repeats(produced: Sequence[int], rule: RepetitionDetection) -> bool:
        return any(
            list(produced[-size * rule.min_count :]) == list(produced[-size:]) * rule.min_count
            for size in range(rule.min_size, rule.max_size + 1)
            if len(produced) >= size * rule.min_count
        )


@dataclass
class Record:
    """What the caller of one request has seen."""

    ask: Ask
    request: Request
    tokens: list[list[int]]
    finishes: dict[int, FinishReason] = field(default_factory=dict)
    stopped_early: set[int] = field(default_factory=set)
    cached: dict[int, int] = field(default_factory=dict)
    """Tokens from the prefix cache, by item, as told with its first output."""
    failed: bool = False
    cancelled: Outcome | None = None
    computed_at_cancel: int = 0
    due: int | None = None
    """The number of the last step in flight when it was cancelled: at its landing the request must be over."""
    ending: Outcome | None = None
    ended_at_step: int = 0

    def closed(self, index: int) -> bool:
        return index in self.finishes or index in self.stopped_early or self.failed or self.cancelled is not None


class Simulation:
    """One engine's scheduler from birth to idleness; `depth` plans are in flight while the next one is made."""

    def __init__(
        self,
        limits: Limits,
        budget: StepBudget,
        *,
        depth: int = 0,
        prefix_caching: bool = True,
        broken: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.limits = limits
        self.budget = budget
        self.depth = depth
        self.scheduler = Scheduler(limits, cache_seed=b"simulated", prefix_caching=prefix_caching)
        self.deadlines = Deadlines()
        self.runner = ScriptedRunner(limits, broken)
        self.records: dict[int, Record] = {}
        self.rows: list[tuple[int, int]] = []
        self.now = 0.0
        self.events = 0
        self.interrupt: Callable[[int], None] | None = None
        self.check_from = 0  # a replay need not check again what came before its interruption
        self.tally: Counter[str] = Counter()
        self._owners: dict[tuple[int, int], Item] = {}
        self._reached: Counter[Item] = Counter()

    # the script

    def run(self, script: Sequence[Ask], max_steps: int = 5_000) -> "Simulation":
        """Let every request of `script` arrive, run until idle, and check how all has ended."""
        arrivals = sorted(script, key=lambda ask: ask.at)
        while True:
            while arrivals and arrivals[0].at <= self.now:
                self._event()
                self.submit(arrivals.pop(0))
            if not self.turn():
                stalled = self._stalled()
                for number in stalled:
                    self._event()
                    self.resume(number)
                if not arrivals and not stalled:
                    break
                if arrivals:
                    self.now = max(self.now, arrivals[0].at)
            assert self.scheduler.counts.steps <= max_steps, "this does not come to an end"
        self._event()
        while self.turn():
            pass
        self.check_end()
        return self

    def turn(self) -> bool:
        """Plan once, and land what is beyond the depth; False when there was nothing to do."""
        self._event()
        self.expire()
        self._event()
        planned = self.plan()
        landing = len(self.runner.in_flight) - (self.depth if planned else 0)
        for _ in range(landing):
            self._event()
            self.land()
        return planned or landing > 0

    def _event(self) -> None:
        if self.interrupt is not None:
            self.interrupt(self.events)
        self.events += 1

    # the events

    def submit(self, ask: Ask) -> int:
        number = len(self.records) + 1
        request = ask.request(number, self.now)
        self.records[number] = Record(ask, request, [[] for _ in request.items])
        self.add(request)
        self.check()
        return number

    def add(self, request: Request) -> None:
        self.scheduler.add(request)
        self.deadlines.add(request)

    def plan(self) -> bool:
        oldest = min(self._running(), key=lambda item: item.age, default=None)
        leaving = any(not self._present(row) for plan in self.runner.in_flight for row in plan.rows)
        preemptions = self.scheduler.counts.preemptions
        plan = self.scheduler.plan(self.budget)
        assert oldest is None or oldest.state is State.RUNNING, "the oldest running item was evicted"
        if leaving:
            assert self.scheduler.counts.preemptions == preemptions, "evicted while blocks were about to come back"
        if plan is not None:
            self._check_budget(plan)
            rows = [(row.slot, row.generation) for row in plan.rows]
            stalled = [item for number in self._stalled() for item in self.records[number].request.items]
            assert not any(self._place(item) in rows for item in stalled), "a stalled step"
            items = [item for record in self.records.values() for item in record.request.items]
            assert all(item.preemptions <= MOST_EVICTIONS for item in items), "an item is evicted again and again"
            self.runner.launch(plan)
            self._note_launch(plan)
        else:
            reads = any(r.ending is None and not r.request.stalled for r in self.records.values())
            assert self.runner.in_flight or not reads or self.awaits_others(), "nothing runs, and nothing will"
        self.check()
        return plan is not None

    def land(self) -> None:
        plan = self.runner.in_flight[0]
        result = self.runner.land()
        failing = self._note_landing(plan, result)
        effects = self.scheduler.land(result)
        self._receive(effects)
        for record in failing:
            record.failed = True
            record.due = plan.number + len(self.runner.in_flight)
        for record in self.records.values():
            assert record.ending or record.due is None or record.due > plan.number, "a cancelled request holds on"
        unmatched = self.scheduler.counts.unmatched
        assert self.scheduler.land(result) == Effects([], []), "a step landed twice"
        assert self.scheduler.counts.unmatched == unmatched + 1
        self.tally["unmatched"] += 1
        self.check()

    def cancel(self, number: int, outcome: Outcome) -> None:
        record = self.records.get(number)
        ended = self.scheduler.cancel(number, outcome, "why")
        if record is None or record.cancelled is not None or record.failed or record.ending is not None:
            self.tally["unmatched"] += 1
            assert not ended
        else:
            record.cancelled = outcome
            record.computed_at_cancel = record.request.computed
            in_flight = self.runner.in_flight
            record.due = in_flight[-1].number if in_flight else None
            assert in_flight or ended, "a cancel with nothing in flight must free everything at once"
        self._end(ended)
        self.check()

    def expire(self) -> None:
        """Whose time is up ends now, and nobody else."""
        live = [record for record in self.records.values() if record.request.outcome is None]
        expired = self.deadlines.expired(self.now)
        ended = [r for request, why in expired for r in self.scheduler.cancel(request.number, Outcome.DEADLINE, why)]
        for record in live:
            request = record.request
            begin_by, end_by = request.spec.due
            late = end_by is not None and end_by <= self.now
            late |= begin_by is not None and begin_by <= self.now and not request.begun
            assert late == (request.outcome is Outcome.DEADLINE)
            if late:
                record.cancelled = Outcome.DEADLINE
                record.computed_at_cancel = request.computed
                in_flight = self.runner.in_flight
                record.due = in_flight[-1].number if in_flight else None
                assert in_flight or request in ended, "a deadline with nothing in flight must free everything at once"
        self._end(ended)
        self.check()

    def stall(self, number: int) -> None:
        request = self.records[number].request if number in self.records else None
        if request is None or request.outcome is not None or request.stalled:
            self.tally["unmatched"] += 1
        self.scheduler.stall(number)
        self.check()

    def resume(self, number: int) -> None:
        request = self.records[number].request if number in self.records else None
        if request is None or request.outcome is not None or not request.stalled:
            self.tally["unmatched"] += 1
        self.scheduler.resume(number)
        self.check()

    def _stalled(self) -> list[int]:
        return [number for number, r in self.records.items() if r.request.stalled and r.request.outcome is None]

    def finish_item(self, number: int, index: int) -> None:
        record = self.records.get(number)
        ended = self.scheduler.finish_item(number, index)
        known = record is not None and record.ending is None and 0 <= index < len(record.tokens)
        if record is not None and known and record.tokens[index] and not record.closed(index):
            record.stopped_early.add(index)
            self.tally[f"finish {FinishReason.STOP}"] += 1
        else:
            self.tally["unmatched"] += 1
        self._end(ended)
        self.check()

    def awaits_others(self) -> bool:
        """Whether some item waits for something outside of this engine."""
        return False

    # what the callers see

    def _receive(self, effects: Effects) -> None:
        for output in effects.outputs:
            self._output(output)
        self._end(effects.ended)

    def _output(self, output: Output) -> None:
        record = self.records[output.request]
        assert record.ending is None, "an output after the end"
        assert not record.closed(output.index), "an output of an item that has ended"
        tokens = record.tokens[output.index]
        prompt = record.ask.prompts[output.index // record.ask.n]
        places = range(len(prompt) + len(tokens), len(prompt) + len(tokens) + len(output.tokens))
        tokens += output.tokens
        self.tally["sampled"] += len(output.tokens)
        self.tally["bursts"] += len(output.tokens) > 1
        assert output.logprobs == ([*map(logprobs_at, places, output.tokens)] or None)
        whole = EMPTY
        for token in prompt:
            whole = follow(whole, token)
        assert output.pooled == (pooled(whole) if record.ask.pooling else None), "wrong vectors"
        first = output.index not in record.cached
        record.cached.setdefault(output.index, output.cached_tokens)
        wanted = first and record.ask.prompt_logprobs is not None and not record.ask.pooling
        assert output.prompt_logprobs == (prompt_logprobs(prompt) if wanted else None)
        assert first or not output.cached_tokens
        assert 0 <= output.cached_tokens < len(prompt)
        if record.ask.pooling is not None and record.ask.pooling.every_token:
            assert not output.cached_tokens, "tokens whose vectors are wanted were not computed"
        if output.finish_reason is not None:
            record.finishes[output.index] = output.finish_reason
            self.tally[f"finish {output.finish_reason}"] += 1
            _, _, stop_token = record.ask.expected(output.index, self.limits.capacity)
            assert output.stop_token == stop_token

    def _end(self, ended: Sequence[Request]) -> None:
        for request in ended:
            record = self.records[request.number]
            assert record.ending is None, "a request ended twice"
            assert request.outcome is not None
            record.ending = request.outcome
            record.ended_at_step = self.scheduler.counts.steps
            if request.outcome is not Outcome.OK:
                self.tally["wasted"] += request.computed

    # what must hold at all times

    def check(self) -> None:
        if self.events < self.check_from:
            return
        self.scheduler.audit()
        snapshot = self.scheduler.snapshot()
        assert snapshot.ledger.conserved
        counts = snapshot.counts
        for name in ("computed", "cached", "recomputed", "sampled", "wasted", "unmatched"):
            assert getattr(counts, name) == self.tally[name], name
        for reason in FinishReason:
            assert snapshot.finish_reasons.get(reason, 0) == self.tally[f"finish {reason}"], reason
        open_requests = [record for record in self.records.values() if record.ending is None]
        assert snapshot.requests == len(open_requests)
        for record in self.records.values():
            if record.cancelled is not None:
                assert record.request.computed == record.computed_at_cancel, "work was counted after a cancel"

    def check_end(self) -> None:
        """Idle: nothing is held, everybody has been told an ending, every text is what it must be."""
        ledger = self.scheduler.snapshot().ledger
        assert not self.scheduler.busy
        assert ledger.free + ledger.cached == ledger.total
        assert ledger.slots_free == ledger.slots_total
        assert self.tally["computed"] == sum(record.request.computed for record in self.records.values())
        for record in self.records.values():
            self._check_record(record)

    def _check_record(self, record: Record) -> None:
        assert record.ending is not None, "a request was never ended"
        assert record.ending is (Outcome.ENGINE_ERROR if record.failed else record.cancelled or Outcome.OK)
        for index, tokens in enumerate(record.tokens):
            expected, reason, _ = record.ask.expected(index, self.limits.capacity)
            assert tokens == expected[: len(tokens)], "wrong text"
            if index in record.finishes:
                assert (tokens, record.finishes[index]) == (expected, reason)
            elif record.ending is Outcome.OK:
                assert index in record.stopped_early, "an item was dropped"

    def _check_budget(self, plan: StepPlan) -> None:
        if not self.limits.paged:
            rest = plan.rows[1:]  # a text of any length runs when it is the first
            assert not rest or sum(row.count for row in plan.rows) <= self.budget.tokens
            assert not rest or sum(self.budget.cost(0, row.count) for row in plan.rows) <= self.budget.seconds + 1e-9
            return
        assert sum(row.count for row in plan.rows) <= self.budget.tokens
        spent = sum(self.budget.cost(row.start, row.count) for row in plan.rows)
        longest, size = max(row.start for row in plan.rows), self.limits.block_size
        # One decode row and one block of a prompt run even if they cost more than there is; two if a prompt ends.
        least = self.budget.cost(longest, 1) + self.budget.cost(longest, 1) + self.budget.cost(longest, size)
        assert spent <= self.budget.seconds + least

    def _running(self) -> list[Item]:
        return [item for request in self.scheduler.requests() for item in request.items if item.state is State.RUNNING]

    def _present(self, row: Row) -> bool:
        """The item of a row in flight has neither left nor been evicted since."""
        return self._place(self._owners[row.slot, row.generation]) == (row.slot, row.generation)

    def _place(self, item: Item) -> tuple[int, int] | None:
        """The slot of an item that is running or stalled, with its generation."""
        run = self.scheduler.run_of(item)
        return None if run is None else (run.slot.slot, run.slot.generation)

    def _note_launch(self, plan: StepPlan) -> None:
        starts = {(start.slot, start.generation) for start in plan.starts}
        places = {self._place(item): item for item in self._running()}
        self._owners.update({place: places[place] for place in starts})
        self.tally["cached"] += sum(row.start for row in plan.rows if (row.slot, row.generation) in starts)
        self.rows += [(plan.number, index) for index in range(len(plan.rows))]
        self.now += sum(self.budget.cost(row.start, row.count) for row in plan.rows) or 1.0

    def _note_landing(self, plan: StepPlan, result: StepResult) -> list[Record]:
        """Count the tokens of rows whose item is still there; returns the requests that fail in this step."""
        failing: list[Record] = []
        for row, answer in zip(plan.rows, result.rows, strict=True):
            item = self._owners[row.slot, row.generation]
            record = self.records[item.request.number]
            if not self._present(row) or record in failing:
                continue
            end = row.start + row.count
            self.tally["computed"] += row.count
            self.tally["recomputed"] += max(0, min(self._reached[item], end) - row.start)
            self._reached[item] = max(self._reached[item], end)
            self.tally["nothing drawn"] += row.samples and not answer.tokens
            if answer.error is not None:
                failing.append(record)
        return failing
