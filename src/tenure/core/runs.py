"""Runs: the items that have a slot and blocks, and how many tokens of each are computed.

    start --> running <--stall, resume--> stalled;  from either --end--> not current any more

Owned by the scheduler. An item has a run exactly while its state is running or stalled, and holds the leases of its run
for as long. After `end` the steps in flight hold them, the last of which to land frees them, by `release`; what tickets
and transfers hold of the blocks outlives the request.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tenure.core.ledger import BlockLease, Holder, HolderKind, Lease, Ledger, LedgerError, SlotLease
from tenure.core.lifecycle import State
from tenure.core.plan import Start
from tenure.core.request import Item, Request


@dataclass(slots=True, eq=False, repr=False)
class Run:
    """An item in a slot, from its start to its end or eviction: its leases and its progress."""

    item: Item
    slot: SlotLease
    lease: BlockLease
    computed: int  # tokens whose keys and values stand in the blocks; at first those that the cache had
    planned: int = field(init=False)  # the same, with the steps in flight
    pending: int = 0  # samples in flight
    published: int = field(init=False)  # full blocks that the prefix cache has been told of
    sent_blocks: int = 0  # length of the block table that was sent to the runner
    start_sent: bool = False  # the runner has got its `Start`
    current: bool = True  # the item has not left or been evicted since

    def __post_init__(self) -> None:
        self.planned = self.computed
        self.published = len(self.lease.blocks)

    def __repr__(self) -> str:
        return f"<Run of item {self.item.number}: {self.computed} tokens computed, {self.planned} planned>"

    def start_message(self) -> Start:
        """The `Start` for the runner, sent with the first row; call once."""
        item, self.start_sent = self.item, True
        request, prompt = item.request, item.index // item.request.spec.n
        return Start(
            self.slot.slot,
            self.slot.generation,
            item.tokens_from(0),
            item.prompt_length,
            item.choice,
            item.sampling,
            request.spec.pooling,
            *(request.spec.text_bounds[prompt] if request.spec.text_bounds else (0, 0)),
        )

    @property
    def length(self) -> int:
        """Tokens known, with the samples in flight."""
        return self.item.length + self.pending

    @property
    def remaining(self) -> int:
        """Tokens that can be planned now. The last token that may be sampled is never computed."""
        if self.pending and not self.item.request.spec.plan_ahead:
            return 0
        last = self.item.prompt_length + max(0, self.item.max_tokens - 1)
        return min(self.length, last) - self.planned

    @property
    def prefilling(self) -> bool:
        """More than the one token of a decode step is left."""
        return self.planned < self.item.prompt_length or self.remaining > 1


class Runs:
    """See the module's docstring. Iterates over what runs, least recently served first."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._running: OrderedDict[Item, Run] = OrderedDict()
        self._stalled: dict[Item, Run] = {}
        self._prepared: dict[Item, BlockLease] = {}

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Run]:
        return iter(self._running.values())

    def get(self, item: Item) -> Run | None:
        """The run of an item, running or stalled."""
        return self._running.get(item) or self._stalled.get(item)

    def prepare(self, item: Item) -> BlockLease:
        """Lease blocks (none yet) to an item that does not run yet, until it starts or leaves, or `give_up`."""
        lease = self._prepared[item] = self._ledger.open_blocks(item.holder)
        item.request.leases.add(lease.number)
        return lease

    def give_up(self, item: Item) -> None:
        """Release what was prepared for the item, if anything."""
        if (lease := self._prepared.pop(item, None)) is not None:
            self._release(item.request, lease, item.holder)

    def start(self, item: Item, matched: list[int], cached: int) -> Run:
        """Give the item a slot, and the `matched` blocks of the prefix cache with its first `cached` tokens."""
        slot, lease = self._ledger.open_slot(item.holder), self._ledger.open_blocks(item.holder)
        item.request.leases |= {slot.number, lease.number}
        self._ledger.share(lease, matched)
        self.give_up(item)  # which the cache has, too
        run = self._running[item] = Run(item, slot, lease, cached)
        return run

    def note_served(self, run: Run) -> None:
        self._running.move_to_end(run.item)

    def stall(self, request: Request) -> list[Item]:
        """Stall the running items of a request; returns them."""
        items = [item for item in self._running if item.request is request]
        for item in items:
            self._stalled[item] = self._running.pop(item)
        return items

    def resume(self, request: Request) -> list[Item]:
        """Resume the stalled items of a request; returns them."""
        items = [item for item in self._stalled if item.request is request]
        for item in items:
            self._running[item] = self._stalled.pop(item)
        return items

    def hand_over(self, item: Item) -> BlockLease | None:
        """Have the ticket with the item's number hold the blocks of its run, too; None when it has no run."""
        if (run := self.get(item)) is None:
            return None
        self._ledger.hold(run.lease, Holder(HolderKind.TICKET, item.number))
        return run.lease

    def end(self, item: Item) -> None:
        """Release what the item has; steps in flight may hold the leases of its run until they land."""
        self.give_up(item)
        run = self._running.pop(item, None) or self._stalled.pop(item, None)
        if run is not None:
            run.current = False
            self.release(run, item.holder)

    def release(self, run: Run, holder: Holder) -> None:
        """Take a holder, an item or a step, off the leases of a run, which may have ended."""
        for lease in (run.slot, run.lease):
            self._release(run.item.request, lease, holder)

    def _release(self, request: Request, lease: Lease, holder: Holder) -> None:
        if self._ledger.release(lease, holder):
            request.leases.remove(lease.number)

    @property
    def stalled(self) -> int:
        """The number of stalled items that still have a slot."""
        return len(self._stalled)

    @property
    def stalled_blocks(self) -> int:
        """The number of blocks of stalled items; shared blocks count for each of them."""
        return sum(len(run.lease.blocks) for run in self._stalled.values())

    def youngest_stalled(self) -> Item | None:
        """The stalled item to evict first; None when none is stalled."""
        return max(self._stalled, key=lambda item: item.age, default=None)

    def victim(self, item: Item) -> Item | None:
        """Who gives up its blocks for `item`: the youngest that is stalled, else the youngest that runs.

        None when others that cannot be evicted hold the rest; they will end.
        """
        if (stalled := self.youngest_stalled()) is not None:
            return stalled
        evictable = [candidate for candidate in self._running if not candidate.eviction_exempt]
        youngest = max(evictable, key=lambda candidate: candidate.age)
        return youngest if youngest is not item or len(evictable) > 1 else None

    def audit(self, items: Sequence[Item]) -> None:
        """Compare with the states of all items; raises `LedgerError` when they differ."""
        for state, runs in ((State.RUNNING, self._running), (State.STALLED, self._stalled)):
            if runs.keys() != {item for item in items if item.state is state}:
                raise LedgerError(f"the items that are {state} and their runs disagree")
        if any(item.state not in (State.FETCHING_KV, State.WAITING) for item in self._prepared):
            raise LedgerError("blocks are prepared for an item that runs, or has left")
