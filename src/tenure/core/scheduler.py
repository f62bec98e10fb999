"""Which items get which tokens of the next step: continuous batching with chunked prefill over paged blocks.

    receive (add, cancel, finish_item) -> plan -> [executor] -> land -> receive ...

`plan` decides and books what it decided; `land` books what the executor reports and returns what to tell the callers.
Nothing here blocks, sleeps or looks at a clock. Mutable state, changed by these methods only:

- `_requests`: every request that has not ended or still holds something.
- `_waiting`: items in state waiting or preempted.   `_running`: items in state running, least recently served first.
- `_steps`: the plans in flight, oldest first. A step is a holder of the lease of each of its rows, so an item that
  ends while a step runs frees its blocks when that step lands. A caller may keep one plan in flight while it plans
  the next.

Invariants: an item has a run, with a lease, exactly while running or stalled; the oldest running item is never evicted,
so there is always progress; a plan acquires all matched blocks before it allocates any, so it cannot evict what it
matched.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from tenure.core.budget import Purse, StepBudget
from tenure.core.finish import finish_of
from tenure.core.ledger import Holder, HolderKind, Ledger, LedgerError
from tenure.core.lifecycle import Event, State
from tenure.core.plan import Row, RowResult, Start, StepPlan, StepResult
from tenure.core.prefix_cache import BlockHash, chain_hashes
from tenure.core.report import Counts, Effects, Limits, Output, SchedulerSnapshot
from tenure.core.request import Item, Request, Run
from tenure.core.waiting import FairShare, WaitingQueue
from tenure.outcomes import FinishReason, Outcome

_PROMPT_SHARE = 0.25
"""The part of a step that decoding leaves to prompts when there are any, so that neither starves the other."""


class Flight(NamedTuple):
    """A row of a plan in flight, and whose it is."""

    run: Run
    row: Row


class Scheduler:
    """See the module's docstring. `cache_seed` keys the names of cached blocks."""

    def __init__(self, limits: Limits, *, cache_seed: bytes = b"", prefix_caching: bool = True) -> None:
        self.limits = limits
        self.ledger = Ledger(limits.num_blocks, limits.num_slots)
        self.counts = Counts()
        self.finish_reasons: Counter[str] = Counter()
        self._cache_seed = cache_seed
        self._prefix_caching = prefix_caching
        self._requests: dict[int, Request] = {}
        self._waiting = WaitingQueue()
        self._running: OrderedDict[Item, Run] = OrderedDict()
        self._steps: OrderedDict[int, list[Flight]] = OrderedDict()
        self._states: Counter[State] = Counter()
        self._arrivals = 0
        self._items = 0
        self._shares = FairShare()

    # receive

    def add(self, request: Request) -> None:
        """Take in an admitted request; the first choice of each prompt waits, the others follow once it is computed.

        Each prompt has at least one token and leaves room for one more in `limits.capacity`.
        """
        if request.number in self._requests:
            raise LedgerError(f"request {request.number} exists already")
        self._arrivals += 1
        request.arrival = self._arrivals
        self._requests[request.number] = request
        for item in request.items:
            self._items += 1
            item.number = self._items
            item.max_tokens = min(item.max_tokens, self.limits.capacity - item.prompt_length)
            self._states[item.state] += 1
        if request.pooling is not None:
            self._shares.give_turns(request)
        for item in request.items:
            if item.choice == 0:
                self._enqueue(item)

    def cancel(self, number: int, outcome: Outcome, message: str = "") -> list[Request]:
        """End all items of a request with `outcome`; returns it if it holds nothing any more.

        A request that is unknown or has an outcome already is counted and otherwise ignored.
        """
        request = self._requests.get(number)
        if request is None or request.outcome is not None:
            self.counts.unmatched += 1
            return []
        self._fail(request, outcome, message)
        return self._close([request])

    def finish_item(self, number: int, index: int) -> list[Request]:
        """The caller needs no more of this item; returns its request if that was the last thing it held.

        Anything but an item that has produced tokens and may produce more is counted and otherwise ignored.
        """
        request = self._requests.get(number)
        item = request.items[index] if request is not None and 0 <= index < len(request.items) else None
        if request is None or item is None or item.ended or len(item.tokens) == item.prompt_length:
            self.counts.unmatched += 1
            return []
        self.finish_reasons[FinishReason.STOP] += 1
        self._leave(item, Event.FINISH)
        return self._close([request])

    # plan

    def plan(self, budget: StepBudget) -> StepPlan | None:
        """The next step, or None when nothing can be computed before a step lands or a request arrives."""
        flights, starts, evicted = self._fill(budget)
        while evicted and not flights:  # what was chosen gave up its blocks: others may go on now
            flights, starts, evicted = self._fill(budget)
        if not flights:
            return None
        self.counts.steps += 1
        step = Holder(HolderKind.STEP, self.counts.steps)
        for flight in flights:
            self.ledger.hold(flight.run.lease, step)
            self._running.move_to_end(flight.run.item)
        self._steps[self.counts.steps] = flights
        return StepPlan(self.counts.steps, starts, [flight.row for flight in flights])

    def _fill(self, budget: StepBudget) -> tuple[list[Flight], list[Start], bool]:
        """Rows for one budget, what the executor must know of new items, and whether an item was evicted."""
        prompts_due = len(self._waiting) > 0 or any(run.prefilling for run in self._running.values())
        purse = Purse(budget, _PROMPT_SHARE if prompts_due else 0.0)
        preemptions = self.counts.preemptions
        flights = self._allocate(self._choose(purse))
        starts = (self._start_waiting if self.limits.paged else self._start_whole)(purse, flights)
        return flights, starts, self.counts.preemptions > preemptions

    def _choose(self, purse: Purse) -> list[tuple[Run, int]]:
        """What runs, and how many tokens each may advance: items that decode first, then prompts."""
        chosen: list[tuple[Run, int]] = []
        prompts: list[Run] = []
        for run in self._running.values():
            if run.prefilling:
                prompts.append(run)
            elif run.remaining and purse.take(run.planned, 1, at_least=not chosen):
                chosen.append((run, 1))
        purse.open_reserve()
        for number, run in enumerate(prompts):
            least = 0 if number else self.limits.block_size
            if run.remaining and (count := purse.take(run.planned, run.remaining, least)):
                chosen.append((run, count))
        return chosen

    def _allocate(self, chosen: list[tuple[Run, int]]) -> list[Flight]:
        """Find blocks for the chosen rows, oldest item first; younger items are evicted to make room."""
        flights = []
        for run, count in sorted(chosen, key=lambda row: row[0].item.age):
            if run.current and self._make_room(run, run.planned + count):
                flights.append(self._book(run, count))
        return flights

    def _make_room(self, run: Run, length: int) -> bool:
        """Have the blocks for `length` tokens available. False: not before a step or transfer has ended."""
        while self._blocks_for(length) - len(run.lease.blocks) > self.ledger.available_blocks:
            if any(not flight.run.current for flights in self._steps.values() for flight in flights):
                return False  # an item that left is about to free its blocks: evicting more would be in vain
            youngest = max(self._running, key=lambda candidate: candidate.age)
            if len(self._running) == 1:
                return False
            self._preempt(youngest)
            if youngest is run.item:
                return False
        return True

    def _start_waiting(self, purse: Purse, flights: list[Flight]) -> list[Start]:
        """Add waiting items to `flights`, oldest first, up to the first for which slots, blocks or budget do not last.

        Returns what the executor must know of them.
        """
        starts: list[Start] = []
        least = 0 if any(flight.row.count > 1 for flight in flights) else self.limits.block_size
        while self.ledger.available_slots and (item := self._waiting.head()) is not None:
            matched = self._matched(item)
            fresh = self._blocks_for(min(len(item.tokens) + 1, self.limits.capacity)) - len(matched)
            idle = sum(self.ledger.cache.is_idle(block) for block in matched)
            # One block for each item that runs is left, so that an item is not evicted right after it was started.
            if fresh + len(self._running) > self.ledger.available_blocks - idle:
                break
            start = len(matched) * self.limits.block_size
            count = purse.take(start, len(item.tokens) - start, least)
            if not count:
                break
            least = 0
            run = self._start(item, matched)
            starts.append(run.introduction())
            flights.append(self._book(run, count, reserve=fresh))
        return starts

    def _start_whole(self, purse: Purse, flights: list[Flight]) -> list[Start]:
        """The same for a model that reads each text in one piece: at least one, however long."""
        starts: list[Start] = []
        while self.ledger.available_slots and (item := self._waiting.head()) is not None:
            if not purse.take_all(len(item.tokens), anyway=not flights):
                break
            run = self._start(item, [])
            starts.append(run.introduction())
            flights.append(self._book(run, len(item.tokens)))
        return starts

    def _matched(self, item: Item) -> list[int]:
        """Cached blocks that begin the item's text, always leaving at least one token to compute."""
        if not self.caches(item):
            return []
        return self.ledger.cache.match(self._names(item, (len(item.tokens) - 1) // self.limits.block_size))

    def caches(self, item: Item) -> bool:
        """What is reported of each token of a prompt comes from computing it: such an item cannot use the cache."""
        pooling = item.request.pooling
        every_token = item.sampling.prompt_logprobs is not None or (pooling is not None and pooling.task.every_token)
        return self.limits.paged and self._prefix_caching and not every_token

    def _names(self, item: Item, count: int) -> list[BlockHash]:
        """The names of the first `count` full blocks of the item's text."""
        if count > len(item.hashes):
            salt, size = item.request.cache_salt, self.limits.block_size
            item.hashes = chain_hashes(self._cache_seed, salt, item.tokens, size, item.hashes)
        return item.hashes[:count]

    def _start(self, item: Item, matched: list[int]) -> Run:
        lease = self.ledger.open(item.holder)
        item.request.leases.add(lease.number)
        self.ledger.share(lease, matched)
        self._waiting.remove(item)
        self._apply(item, Event.START)
        self._shares.note_start(item)
        run = item.run = self._running[item] = Run(item, lease, len(matched) * self.limits.block_size)
        self.counts.cached += run.computed
        if not item.preemptions:
            item.cached = min(run.computed, item.prompt_length)
        return run

    def _book(self, run: Run, count: int, reserve: int = 0) -> Flight:
        """Lease the blocks that are lacking (`reserve` at least) and note `count` more tokens as planned."""
        lease = run.lease
        lacking = self._blocks_for(run.planned + count) - len(lease.blocks)
        if max(lacking, reserve) > 0:
            self.ledger.grow(lease, max(lacking, reserve))
        samples = run.planned + count == run.length and run.item.max_tokens > 0
        row = Row(lease.slot, lease.generation, run.planned, count, lease.blocks[run.told_blocks :], samples)
        run.told_blocks = len(lease.blocks)
        run.planned += count
        run.pending += samples
        return Flight(run, row)

    # land

    def land(self, result: StepResult) -> Effects:
        """Book the results of the oldest step in flight. One that is not in flight is counted and otherwise ignored.

        Results that do not answer the plan row by row, or come out of order, raise `LedgerError` and change nothing.
        """
        flights = self._steps.get(result.number)
        if flights is None:
            self.counts.unmatched += 1
            return Effects([], [])
        if result.number != next(iter(self._steps)):
            raise LedgerError(f"step {result.number} lands before an older one")
        answered = [(row.slot, row.generation) for row in result.rows]
        if answered != [(flight.row.slot, flight.row.generation) for flight in flights]:
            raise LedgerError(f"the results of step {result.number} do not match its rows")
        del self._steps[result.number]
        step = Holder(HolderKind.STEP, result.number)
        outputs: list[Output] = []
        for flight, row in zip(flights, result.rows, strict=True):
            self._release(flight.run, step)
            if flight.run.current:  # else the item left, or was evicted, while the step ran
                outputs += self._land_row(flight, row)
        touched = dict.fromkeys(flight.run.item.request for flight in flights)
        return Effects(outputs, self._close(touched))

    def _land_row(self, flight: Flight, result: RowResult) -> list[Output]:
        run, row = flight
        item = run.item
        run.computed = row.start + row.count
        item.request.computed += row.count
        self.counts.computed += row.count
        self.counts.recomputed += max(0, min(run.computed, item.reached) - row.start)
        item.reached = max(item.reached, run.computed)
        if result.error is not None:
            self._fail(item.request, result.outcome, result.error)
            return []
        self._publish(run)
        item.note_prompt_logprobs(row.start, result.prompt_logprobs)
        if run.computed >= item.prompt_length:
            self._enqueue_followers(item)
        if not row.samples and (item.max_tokens or run.computed < item.prompt_length):
            return []
        if row.samples:
            assert result.token is not None
            run.pending -= 1
            item.tokens.append(result.token)
            self.counts.sampled += 1
        return [self._output(item, result)]

    def _output(self, item: Item, result: RowResult) -> Output:
        """What to tell of the item; ends it when that was its last token."""
        reason, stop_token = finish_of(item)
        first, item.reported = not item.reported, True
        output = Output(
            item.request,
            item.index,
            result.token,
            result.logprobs,
            reason,
            stop_token,
            item.prompt_logprobs if first and item.sampling.prompt_logprobs is not None else None,
            item.cached if first else 0,
            result.pooled,
        )
        if reason is not None:
            self.finish_reasons[reason] += 1
            self._leave(item, Event.FINISH)
        return output

    def _publish(self, run: Run) -> None:
        """Let others find the blocks that are complete now."""
        if not self.caches(run.item):
            return
        complete = run.computed // self.limits.block_size
        for index, name in enumerate(self._names(run.item, complete)[run.published :], run.published):
            self.ledger.publish(run.lease, index, name)
        run.published = complete

    # leaving

    def _apply(self, item: Item, event: Event) -> None:
        before = item.state
        item.apply(event)
        self._states[before] -= 1
        self._states[item.state] += 1

    def _enqueue(self, item: Item) -> None:
        self._apply(item, Event.ENQUEUE)
        self._waiting.push(item)

    def _enqueue_followers(self, item: Item) -> None:
        for follower in item.followers:
            self._enqueue(follower)
        item.followers = []

    def _preempt(self, item: Item) -> None:
        self._apply(item, Event.PREEMPT)
        self._let_go(item)
        self._waiting.push(item)
        item.preemptions += 1
        self.counts.preemptions += 1

    def _leave(self, item: Item, event: Event) -> None:
        """The one way out for an item, wherever it is."""
        self._apply(item, event)
        if item in self._waiting:
            self._waiting.remove(item)
        self._let_go(item)

    def _let_go(self, item: Item) -> None:
        """End the item's stay in its slot, if it has one; steps in flight may hold its lease for a while."""
        if item.run is not None:
            run, item.run = item.run, None
            self._running.pop(item, None)
            self._release(run, item.holder)

    def _release(self, run: Run, holder: Holder) -> None:
        if self.ledger.release(run.lease, holder):
            run.item.request.leases.remove(run.lease.number)

    def _fail(self, request: Request, outcome: Outcome, message: str) -> None:
        request.outcome, request.message = outcome, message
        for item in request.items:
            if not item.ended:
                self._leave(item, Event.ABORT)

    def _close(self, requests: Iterable[Request]) -> list[Request]:
        """Those of `requests` that are over; they are forgotten here, so each is returned once."""
        over = [request for request in requests if request.over]
        for request in over:
            request.outcome = request.outcome or Outcome.OK
            if request.outcome is not Outcome.OK:
                self.counts.wasted += request.computed
            for item in request.items:
                self._states[item.state] -= 1
            del self._requests[request.number]
        return over

    def _blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size) if self.limits.paged else 0

    # looking

    @property
    def busy(self) -> bool:
        """Some request has not ended, or still holds something."""
        return bool(self._requests)

    def items_of(self, number: int) -> list[Item]:
        """Whose rows a step in flight has, in order."""
        return [flight.run.item for flight in self._steps[number]]

    def requests(self) -> Iterable[Request]:
        """All open requests, oldest first."""
        return self._requests.values()

    def snapshot(self) -> SchedulerSnapshot:
        return SchedulerSnapshot(
            ledger=self.ledger.snapshot(),
            items={state: count for state, count in self._states.items() if count},
            counts=msgspec.structs.replace(self.counts),
            finish_reasons=dict(self.finish_reasons),
            requests=len(self._requests),
        )

    def audit(self) -> None:
        """Recount everything; raises `LedgerError` naming what does not add up."""
        self.ledger.audit()
        items = [item for request in self._requests.values() for item in request.items]
        states = Counter(item.state for item in items)
        if states != +self._states:
            raise LedgerError(f"item counts {self._states} differ from the items {states}")
        for item in items:
            if (item.run is not None) != (item.state in (State.RUNNING, State.STALLED)):
                raise LedgerError(f"{item} and its run disagree")
            if (item in self._waiting) != (item.state in (State.WAITING, State.PREEMPTED)):
                raise LedgerError(f"{item} and the queue disagree")
            if self._running.get(item) is not (item.run if item.state is State.RUNNING else None):
                raise LedgerError(f"{item} and the running list disagree")
        self._audit_leases()

    def _audit_leases(self) -> None:
        leases = self.ledger.leases()
        owned = {number for request in self._requests.values() for number in request.leases}
        if {lease.number for lease in leases} != owned:
            raise LedgerError("an open lease belongs to no request")
        held = {(h.number, lease.number) for lease in leases for h in lease.holders if h.kind is HolderKind.STEP}
        if held != {(number, flight.run.lease.number) for number, flights in self._steps.items() for flight in flights}:
            raise LedgerError("the steps in flight and what they hold disagree")
