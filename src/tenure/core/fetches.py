"""Prompts that another engine has computed: their blocks are fetched into the prefix cache before the item starts.

    awaiting_prefill --grant, then room--> fetching_kv --settle(confirmed)--> waiting, with the blocks, until it starts
          |                                   |
          +--refuse, or nothing to fetch------+--settle(not confirmed)--> waiting: it computes its prompt itself,
                                                                          or its request ends as `kv_lost`

Runs beside the scheduler, in the same thread, and is told two things of each transfer: `end_transfer`, once it is
proven that it writes no more, and `settle`, whether the other engine has confirmed what was read. Until the former the
transfer holds the blocks; those that nobody else holds by then are in quarantine. What was confirmed is published in
the cache under the names that computing it would have given, so what follows is as if it had been computed here.

Fetches hold at most `limit` blocks together, those in quarantine included. Items cannot count on so many (see
`Limits.set_aside`); so whatever is held here, for how long ever, keeps nobody from running to its end.
"""

from dataclasses import dataclass
from typing import NamedTuple

from tenure.core.ledger import BlockLease, Holder, HolderKind, LedgerError
from tenure.core.lifecycle import State
from tenure.core.prefix_cache import BlockHash
from tenure.core.request import Item, Request
from tenure.core.scheduler import Scheduler
from tenure.outcomes import Outcome

_LOST = "the keys and values of the prompt, which another engine has computed, were lost"


class Fetch(NamedTuple):
    """What a connector is to do: read `blocks` of a claimed prompt, from its block number `first` on."""

    transfer: int
    claim: int
    first: int
    blocks: list[int]


@dataclass(slots=True, eq=False)
class _Transfer:
    item: Item
    lease: BlockLease
    first: int
    names: list[BlockHash]  # of all blocks of the lease; those from `first` on are fetched
    holder: Holder
    writing: bool = True  # it is not proven yet that it writes no more


class Fetches:
    """See the module's docstring. With `recompute`, what cannot be fetched is computed here."""

    def __init__(self, scheduler: Scheduler, limit: int, *, recompute: bool = True) -> None:
        self._scheduler = scheduler
        self._limit = limit
        self.recompute = recompute
        self._awaiting: dict[int, Item] = {}  # by claim
        self._granted: dict[Item, None] = {}  # in the order in which they were
        self._transfers: dict[int, _Transfer] = {}  # those whose lease is not free yet
        self._begun = 0
        self.unmatched = 0

    def add(self, request: Request) -> None:
        """Take note of a request that the scheduler was given."""
        self._awaiting |= {item.claim: item for item in request.items if item.state is State.AWAITING_PREFILL}

    def close(self, request: Request) -> None:
        """Forget a request that is over."""
        for item in request.items if request.spec.claims else ():
            self._awaiting.pop(item.claim, None)
            self._granted.pop(item, None)

    def grant(self, claim: int) -> None:
        """The prompt of a claim is computed and can be fetched."""
        item = self._take(claim)
        if item is not None:
            self._granted[item] = None

    def refuse(self, claim: int) -> list[Request]:
        """The prompt of a claim cannot be fetched; returns what ends by it and holds nothing any more."""
        item = self._take(claim)
        return [] if item is None else self._lose(item)

    def begin(self) -> list[Fetch]:
        """Begin the fetches for which there is room, oldest grant first. One without blocks has nothing to read."""
        begun: list[Fetch] = []
        for item in list(self._granted):
            if not item.ended:
                if (fetch := self._begin(item)) is None:
                    break
                begun.append(fetch)
            del self._granted[item]
        return begun

    def _begin(self, item: Item) -> Fetch | None:
        """None while there is no room."""
        ledger = self._scheduler.ledger
        names = self._scheduler.hashes.usable(item)
        matched = ledger.cache.match(names)
        lacking = len(names) - len(matched)
        if not lacking or len(names) > self._limit:
            self._scheduler.enqueue(item)
            return Fetch(0, item.claim, len(matched), [])
        idle = sum(map(ledger.cache.is_idle, matched))
        if len(names) > self._limit - self.blocks or lacking > ledger.available_blocks - idle:
            return None
        lease = self._scheduler.begin_fetch(item)
        ledger.share(lease, matched)
        blocks = ledger.grow(lease, lacking)
        self._begun += 1
        transfer = _Transfer(item, lease, len(matched), names, Holder(HolderKind.TRANSFER, self._begun))
        ledger.hold(lease, transfer.holder)
        self._transfers[self._begun] = transfer
        return Fetch(self._begun, item.claim, len(matched), blocks)

    def end_transfer(self, number: int) -> None:
        """It is proven that a transfer writes no more."""
        transfer = self._transfers.get(number)
        if transfer is None or not transfer.writing:
            self.unmatched += 1
            return
        transfer.writing = False
        self._scheduler.ledger.release(transfer.lease, transfer.holder)

    def settle(self, number: int, *, confirmed: bool) -> list[Request]:
        """What a transfer has read is the prompt's, or not; returns what ends by it and holds nothing any more.

        What may still be written is not confirmed, whatever the other engine says.
        """
        transfer = self._transfers.get(number)
        if transfer is None or transfer.item.state is not State.FETCHING_KV:
            self.unmatched += 1
            return []
        if not confirmed or transfer.writing:
            return self._lose(transfer.item)
        for index, name in enumerate(transfer.names[transfer.first :], transfer.first):
            self._scheduler.ledger.publish(transfer.lease, index, name)
        self._scheduler.end_fetch(transfer.item, fetched=True)
        return []

    @property
    def blocks(self) -> int:
        """The number of blocks that fetches hold, in quarantine or not."""
        self._transfers = {number: transfer for number, transfer in self._transfers.items() if transfer.lease.holders}
        return sum(len(transfer.lease.blocks) for transfer in self._transfers.values())

    def _take(self, claim: int) -> Item | None:
        item = self._awaiting.pop(claim, None)
        if item is None or item.ended:
            self.unmatched += 1
            return None
        return item

    def _lose(self, item: Item) -> list[Request]:
        if not self.recompute:
            return self._scheduler.cancel(item.request.number, Outcome.KV_LOST, _LOST)
        if item.state is State.FETCHING_KV:
            self._scheduler.end_fetch(item, fetched=False)
        else:
            self._scheduler.enqueue(item)
        return []

    def audit(self) -> None:
        """Recount; raises `LedgerError` naming what does not add up."""
        transfers = self._transfers.values()
        held = self._scheduler.ledger.held_by(HolderKind.TRANSFER)
        if held != {(transfer.holder.number, transfer.lease.number) for transfer in transfers if transfer.writing}:
            raise LedgerError("the transfers that may write and what transfers hold disagree")
        items = {item for request in self._scheduler.requests() for item in request.unfinished}
        fetching = {item for item in items if item.state is State.FETCHING_KV}
        if fetching != {transfer.item for transfer in transfers if transfer.item.state is State.FETCHING_KV}:
            raise LedgerError("an item fetches without a transfer")
        awaiting = {item for item in items if item.state is State.AWAITING_PREFILL}
        if awaiting != {item for item in (*self._awaiting.values(), *self._granted) if not item.ended}:
            raise LedgerError("an item awaits a prefill that nobody will tell of")
        if self.blocks > self._limit:
            raise LedgerError(f"fetches hold {self.blocks} blocks, {self._limit} at most")
