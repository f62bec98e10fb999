"""Which items get which tokens of the next step: continuous batching with chunked prefill over paged blocks.

    receive (add, cancel, finish_item, stall, resume) -> plan -> [runner] -> land -> receive ...

`plan` decides and books what it decided; `land` books what the runner reports and returns what to tell the callers.
Nothing here blocks, sleeps or looks at a clock. Mutable state, changed by these methods only:

- `_open`: every request that has not ended or still holds something, with the states of their items.
- `_waiting`: items in state waiting or preempted; those of stalled requests are passed over.
- `_runs`: items in state running or stalled, with their slots and blocks.
- `_steps`: the plans in flight. A step is a holder of the leases of each of its rows, so an item that ends while a step
  runs frees its blocks when that step lands. A caller may keep one plan in flight while it plans the next.

Invariants: the oldest running item is never evicted, so there is always progress; while it runs an item is evicted a
few times at most, since it then comes back only with every block that it can ever need; while it is stalled, whenever
one that can run needs what it has; a plan acquires all matched blocks before it allocates any, so it cannot evict what
it matched.
"""

from collections import Counter
from collections.abc import Iterable

import msgspec

from tenure.core.block_hashes import BlockHashes
from tenure.core.budget import RemainingBudget, StepBudget
from tenure.core.ledger import BlockLease, Ledger, LedgerError
from tenure.core.lifecycle import Event, State
from tenure.core.limits import Limits
from tenure.core.open_requests import OpenRequests
from tenure.core.plan import Row, RowResult, StepPlan, StepResult
from tenure.core.report import Counts, Effects, Output, SchedulerSnapshot
from tenure.core.request import Item, Request
from tenure.core.runs import Run, Runs
from tenure.core.steps import PlannedRow, StepsInFlight, holder_of
from tenure.core.stop_checker import finish_of
from tenure.core.waiting import FairShare, Startable, WaitingQueue
from tenure.outcomes import FinishReason, Outcome

_PROMPT_SHARE = 0.25
"""The part of a step that decoding leaves to prompts when there are any, so that neither starves the other."""

_QUEUEING = (State.WAITING, State.PREEMPTED)


class Scheduler:
    """See the module's docstring. `cache_seed` keys the names of cached blocks."""

    def __init__(self, limits: Limits, *, cache_seed: bytes = b"", prefix_caching: bool = True) -> None:
        self.limits = limits
        self.ledger = Ledger(limits.num_blocks, limits.num_slots)
        self.counts = Counts()
        self.finish_reasons: Counter[str] = Counter()
        self.hashes = BlockHashes(cache_seed, limits.block_size, enabled=prefix_caching)
        self._open = OpenRequests()
        self._waiting = WaitingQueue()
        self._runs = Runs(self.ledger)
        self._steps = StepsInFlight(self.ledger)
        self._fair_share = FairShare()

    # receive

    def add(self, request: Request) -> None:
        """Take in an admitted request; the first choice of each prompt waits, the others follow once it is computed.

        Each prompt has at least one token and leaves room for one more in `limits.capacity`.
        """
        self._open.add(request)
        for item in request.items:
            item.max_tokens = min(item.max_tokens, self.limits.capacity - item.prompt_length)
        self._fair_share.assign(request)
        for item in request.items:
            if item.choice == 0 and item.claim:
                self._open.apply(item, Event.AWAIT_PREFILL)
            elif item.choice == 0:
                self.enqueue(item)

    def begin_fetch(self, item: Item) -> BlockLease:
        """Lease blocks to an item that awaits its prefill, for what is fetched into them; none yet."""
        self._open.apply(item, Event.FETCH)
        return self._runs.prepare(item)

    def end_fetch(self, item: Item, *, fetched: bool) -> None:
        """Let the item wait for its start. It keeps what was fetched, which is in the prefix cache, until then."""
        if not fetched:
            self._runs.give_up(item)
        self.enqueue(item, Event.FETCHED if fetched else Event.FETCH_FAILED)

    def enqueue(self, item: Item, event: Event = Event.ENQUEUE) -> None:
        self._open.apply(item, event)
        self._waiting.push(item)

    def cancel(self, number: int, outcome: Outcome, message: str = "") -> list[Request]:
        """End all items of a request with `outcome`; returns it if it holds nothing any more.

        A request that is unknown or has an outcome already is counted and otherwise ignored.
        """
        request = self._open.find(number)
        if request is None:
            self.counts.unmatched += 1
            return []
        self._fail(request, outcome, message)
        return self._close([request])

    def stall(self, number: int) -> None:
        """The caller does not read: the items get no steps, and keep what they have until one that can run needs it.

        Again, or unknown: counted only.
        """
        request = self._open.find(number)
        if request is None or request.stalled:
            self.counts.unmatched += 1
            return
        request.stalled = True
        for item in self._runs.stall(request):
            self._open.apply(item, Event.STALL)

    def resume(self, number: int) -> None:
        """The caller reads again. Not stalled, or unknown: counted only."""
        request = self._open.find(number)
        if request is None or not request.stalled:
            self.counts.unmatched += 1
            return
        request.stalled = False
        for item in self._runs.resume(request):
            self._open.apply(item, Event.RESUME)
        self._waiting.offer(request)

    def finish_item(self, number: int, index: int) -> list[Request]:
        """The caller needs no more of this item; returns its request if that was the last thing it held.

        Anything but an item that has produced tokens and may produce more is counted and otherwise ignored.
        """
        request = self._open.find(number)
        item = request.items[index] if request is not None and 0 <= index < len(request.items) else None
        if request is None or item is None or item.ended or not item.output:
            self.counts.unmatched += 1
            return []
        self.finish_reasons[FinishReason.STOP] += 1
        self._leave(item, Event.FINISH)
        return self._close([request])

    # plan

    def plan(self, budget: StepBudget) -> StepPlan | None:
        """The next step, or None when nothing can be computed before a step lands or a request arrives."""
        planned, evicted = self._fill(budget)
        while evicted and not planned:  # what was chosen gave up its blocks: others may go on now
            planned, evicted = self._fill(budget)
        if not planned:
            return None
        starts = [entry.run.start_message() for entry in planned if not entry.run.start_sent]
        self.counts.steps += 1
        self._steps.launch(self.counts.steps, planned)
        for entry in planned:
            self._runs.note_served(entry.run)
        return StepPlan(self.counts.steps, starts, [entry.row for entry in planned])

    def _fill(self, budget: StepBudget) -> tuple[list[PlannedRow], bool]:
        """Plan rows for one budget; returns them, and whether an item was evicted meanwhile."""
        preemptions = self.counts.preemptions
        ready = self._startable() if self.limits.paged else None
        prompts_due = ready is not None or any(run.prefilling for run in self._runs)
        remaining = RemainingBudget(budget, _PROMPT_SHARE if prompts_due else 0.0)
        planned = self._allocate(self._choose(remaining, ready))
        remaining.open_reserve()
        (self._start_waiting if self.limits.paged else self._start_whole)(remaining, planned)
        return planned, self.counts.preemptions > preemptions

    def _choose(self, remaining: RemainingBudget, ready: Startable | None) -> list[tuple[Run, int]]:
        """What runs, and how many tokens each may advance: items that decode first, then prompts.

        A part is held back for `ready`, which can start, if it is of a request of which nothing runs: it does not wait
        for others' prompts.
        """
        chosen: list[tuple[Run, int]] = []
        prompts: list[Run] = []
        for run in self._runs:
            if run.prefilling:
                prompts.append(run)
            elif run.remaining and remaining.take(run.planned, 1, at_least=not chosen):
                chosen.append((run, 1))
        remaining.open_reserve()
        if prompts and ready is not None and all(run.item.request is not ready.item.request for run in self._runs):
            remaining.hold_back(ready.start, ready.item.length - ready.start)
        for number, run in enumerate(prompts):
            least = 0 if number else self.limits.block_size
            if run.remaining and (count := remaining.take(run.planned, run.remaining, least)):
                chosen.append((run, count))
        return chosen

    def _allocate(self, chosen: list[tuple[Run, int]]) -> list[PlannedRow]:
        """Find blocks for the chosen rows, oldest item first; stalled items, then younger ones, make room."""
        planned = []
        for run, count in sorted(chosen, key=lambda row: row[0].item.age):
            if run.current and self._make_room(run, run.planned + count):
                planned.append(self._book(run, count))
        return planned

    def _make_room(self, run: Run, length: int) -> bool:
        """Evict until the blocks for `length` tokens are available. False: not before a step or transfer has ended."""
        while self.limits.blocks_for(length) - len(run.lease.blocks) > self.ledger.available_blocks:
            if self._steps.leaving:
                return False  # evicting more would be in vain
            victim = self._runs.victim(run.item)
            if victim is None:
                return False
            self._preempt(victim)
            if victim is run.item:
                return False
        return True

    def _start_waiting(self, remaining: RemainingBudget, planned: list[PlannedRow]) -> None:
        """Add waiting items to `planned`, oldest first, up to the first that slots, blocks or budget do not allow."""
        least = 0 if any(entry.row.count > 1 for entry in planned) else self.limits.block_size
        while (ready := self._startable()) is not None:
            count = remaining.take(ready.start, ready.item.length - ready.start, least)
            if not count:
                break
            least = 0
            planned.append(self._book(self._start(ready.item, ready.matched), count, reserve=ready.fresh))

    def _startable(self) -> Startable | None:
        """The oldest item that waits, if slots and blocks allow it to start; stalled items give up theirs for it."""
        if (item := self._waiting.head()) is None or not (self.ledger.available_slots or self._runs.stalled):
            return None
        matched = self.ledger.cache.match(self.hashes.usable(item))
        fresh = self.limits.blocks_for(self._needed(item)) - len(matched)
        # One block for each item that runs is left, so that an item is not evicted right after it was started.
        wanted = fresh + len(self._runs)
        if wanted > self._room_beside(matched) + self._runs.stalled_blocks:
            return None
        while not self.ledger.available_slots or wanted > self._room_beside(matched):
            victim = self._runs.youngest_stalled()
            if victim is None or self._steps.leaving:
                return None
            self._preempt(victim)
        return Startable(item, matched, len(matched) * self.limits.block_size, fresh)

    def _room_beside(self, matched: list[int]) -> int:
        """The number of blocks that can be leased besides these cached ones."""
        return self.ledger.available_blocks - sum(map(self.ledger.cache.is_idle, matched))

    def _needed(self, item: Item) -> int:
        """The tokens for which an item gets blocks at its start: all that it may ever have if eviction-exempt."""
        most = item.prompt_length + item.max_tokens
        return most if item.eviction_exempt else min(item.length + 1, self.limits.capacity)

    def _start_whole(self, remaining: RemainingBudget, planned: list[PlannedRow]) -> None:
        """The same for a model that reads each text in one piece: at least one, however long."""
        while self.ledger.available_slots and (item := self._waiting.head()) is not None:
            if not remaining.take_all(item.length, anyway=not planned):
                break
            planned.append(self._book(self._start(item, []), item.length))

    def _start(self, item: Item, matched: list[int]) -> Run:
        run = self._runs.start(item, matched, len(matched) * self.limits.block_size)
        self._waiting.remove(item)
        self._open.apply(item, Event.START)
        item.request.begun = True
        self._fair_share.note_start(item)
        self.counts.queried += item.length * self.hashes.shared(item)
        self.counts.cached += run.computed
        if not item.reached:
            item.cached = min(run.computed, item.prompt_length)
        return run

    def _book(self, run: Run, count: int, reserve: int = 0) -> PlannedRow:
        """Lease the blocks that are lacking (`reserve` at least) and note `count` more tokens as planned."""
        lease = run.lease
        lacking = self.limits.blocks_for(run.planned + count) - len(lease.blocks)
        if max(lacking, reserve) > 0:
            self.ledger.grow(lease, max(lacking, reserve))
        samples = run.planned + count == run.length and run.item.max_tokens > 0
        row = Row(run.slot.slot, run.slot.generation, run.planned, count, lease.blocks[run.sent_blocks :], samples)
        run.sent_blocks = len(lease.blocks)
        run.planned += count
        run.pending += samples
        return PlannedRow(run, row)

    # land

    def land(self, result: StepResult) -> Effects:
        """Book the results of the oldest step in flight. One that is not in flight is counted and otherwise ignored.

        Results that do not answer the plan row by row, or come out of order, raise `LedgerError` and change nothing.
        """
        landed = self._steps.take(result)
        if landed is None:
            self.counts.unmatched += 1
            return Effects([], [])
        outputs: list[Output] = []
        holder = holder_of(result.number)
        for entry, row in landed:
            self._runs.release(entry.run, holder)
            if entry.run.current:  # else the item left, or was evicted, while the step ran
                outputs += self._land_row(entry, row)
        touched = dict.fromkeys(entry.run.item.request for entry, _ in landed)
        return Effects(outputs, self._close(touched))

    def _land_row(self, entry: PlannedRow, result: RowResult) -> list[Output]:
        run, row = entry
        item = run.item
        again = row.samples and not result.tokens and result.error is None
        end = row.start + row.count
        run.computed = end - again
        item.request.computed += row.count
        self.counts.computed += row.count
        self.counts.recomputed += max(0, min(end, item.reached) - row.start)
        item.reached = max(item.reached, end)
        if result.error is not None:
            self._fail(item.request, result.outcome, result.error)
            return []
        self.hashes.publish(run, self.ledger)
        item.note_prompt_logprobs(row.start, result.prompt_logprobs)
        if run.computed >= item.prompt_length:
            self._enqueue_followers(item)
        if not row.samples and (item.max_tokens or run.computed < item.prompt_length):
            return []
        run.pending -= row.samples
        run.planned -= again
        return [] if again else [self._output(item, result)]

    def _output(self, item: Item, result: RowResult) -> Output:
        """The output for the item. Ends the item if one of the tokens was its last, and drops those after it."""
        count, (reason, stop_token) = 0, finish_of(item)
        while reason is None and count < len(result.tokens):
            item.output.append(result.tokens[count])
            count += 1
            reason, stop_token = finish_of(item)
        self.counts.sampled += count
        first = len(item.output) == count
        output = Output(
            item.request.number,
            item.index,
            result.tokens[:count],
            result.logprobs and result.logprobs[:count],
            reason,
            stop_token,
            item.prompt_logprobs if first and item.sampling.prompt_logprobs is not None else None,
            item.cached if first else 0,
            result.pooled,
            self._runs.hand_over(item) if reason is not None and item.request.spec.handover else None,
        )
        if reason is not None:
            self.finish_reasons[reason] += 1
            self._leave(item, Event.FINISH)
        return output

    # leaving

    def _enqueue_followers(self, item: Item) -> None:
        for follower in item.followers:
            follower.hashes = self.hashes.of_prompt(item)
            self.enqueue(follower)
        item.followers = []

    def _preempt(self, item: Item) -> None:
        item.preemptions += item.state is State.RUNNING
        self._open.apply(item, Event.PREEMPT)
        self._runs.end(item)
        self._waiting.push(item)
        self.counts.preemptions += 1

    def _leave(self, item: Item, event: Event) -> None:
        """The one way out for an item, wherever it is."""
        self._open.apply(item, event)
        if item in self._waiting:
            self._waiting.remove(item)
        self._runs.end(item)

    def _fail(self, request: Request, outcome: Outcome, message: str) -> None:
        request.outcome, request.message = outcome, message
        for item in list(request.unfinished):
            self._leave(item, Event.ABORT)

    def _close(self, requests: Iterable[Request]) -> list[Request]:
        """Those of `requests` that are over; each is returned once."""
        over = self._open.close(requests)
        self.counts.wasted += sum(request.computed for request in over if request.outcome is not Outcome.OK)
        return over

    # looking

    @property
    def busy(self) -> bool:
        """Some request has not ended, or still holds something."""
        return bool(self._open)

    def items_of(self, number: int) -> list[Item]:
        """The items of the rows of a step in flight, in order."""
        return self._steps.items_of(number)

    def run_of(self, item: Item) -> Run | None:
        """The run of an item while it is running or stalled; else None."""
        return self._runs.get(item)

    def requests(self) -> Iterable[Request]:
        """All open requests, oldest first."""
        return self._open

    def snapshot(self) -> SchedulerSnapshot:
        return SchedulerSnapshot(
            ledger=self.ledger.snapshot(),
            items={state: count for state, count in self._open.states.items() if count},
            counts=msgspec.structs.replace(self.counts),
            finish_reasons=dict(self.finish_reasons),
            requests=len(self._open),
        )

    def audit(self) -> None:
        """Recount everything; raises `LedgerError` naming what does not add up."""
        self.ledger.audit()
        self._open.audit()
        items = [item for request in self._open for item in request.unfinished]
        self._runs.audit(items)
        for item in items:
            if (item in self._waiting) != (item.state in _QUEUEING):
                raise LedgerError(f"{item} and the queue disagree")
        self._steps.audit()
        owned = {number for request in self._open for number in request.leases}
        if {lease.number for lease in self.ledger.leases() if lease.users} != owned:
            raise LedgerError("what items and steps hold, and what belongs to requests, disagree")
