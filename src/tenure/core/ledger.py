"""Who holds which KV blocks and slots of one engine.

A `Lease` is what one item has while it runs: a slot and the blocks of its block table, with a set of named holders
(the item itself, the steps that use it, a transfer). The last holder's leaving frees it; there is no other way to
free anything. Letting go twice, or as a stranger, raises and changes nothing.

    free --open/grow--> leased --last holder lets go--> free, or cached when the prefix cache knows the block
    cached --share--> leased;  cached --evict--> leased (under a new owner)

Each block is counted once: quarantined (a lease that only transfers hold), else leased, else cached, else free.
Conservation: free + cached + leased + quarantined = total for blocks, free + leased = total for slots.

The leases are the truth; the per-block count `_uses`, the number of blocks in use `_in_use` and the leases that are
quarantined are derived from them and compared with them by `audit`.
The engine loop is the only thread that touches this object.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from tenure.core.prefix_cache import BlockHash, PrefixCache
from tenure.errors import InternalError


class HolderKind(StrEnum):
    ITEM = "item"
    STEP = "step"
    TRANSFER = "transfer"


class Holder(NamedTuple):
    """A name under which something is held, such as `item 7` or `step 41`."""

    kind: HolderKind
    number: int

    def __str__(self) -> str:
        return f"{self.kind} {self.number}"


class LedgerError(InternalError):
    """Something was freed twice, freed by a stranger, or does not add up."""


class LedgerSnapshot(msgspec.Struct, frozen=True, gc=False):
    total: int
    free: int
    cached: int
    leased: int
    quarantined: int
    slots_total: int
    slots_free: int
    slots_leased: int

    @property
    def conserved(self) -> bool:
        blocks = (self.free, self.cached, self.leased, self.quarantined)
        slots = (self.slots_free, self.slots_leased)
        return sum(blocks) == self.total and sum(slots) == self.slots_total and min(*blocks, *slots) >= 0


@dataclass(slots=True, eq=False, repr=False)
class Lease:
    """A slot, the blocks of one block table, and their holders. Only the ledger changes it."""

    number: int
    slot: int
    generation: int
    holders: set[Holder]
    blocks: list[int] = field(default_factory=list)

    def __repr__(self) -> str:
        holders = ", ".join(sorted(map(str, self.holders)))
        return f"<Lease {self.number}: slot {self.slot}, {len(self.blocks)} blocks, held by {holders or 'nobody'}>"

    @property
    def quarantined(self) -> bool:
        """Only transfers hold it: they may still write, so nobody else may have the blocks."""
        return bool(self.holders) and all(holder.kind is HolderKind.TRANSFER for holder in self.holders)


class Ledger:
    """The blocks and slots of one engine; see the module's docstring for the rules."""

    def __init__(self, num_blocks: int, num_slots: int) -> None:
        self.num_blocks = num_blocks
        self.num_slots = num_slots
        self.cache = PrefixCache()
        self._free_blocks = list(range(num_blocks - 1, -1, -1))
        self._free_slots = list(range(num_slots - 1, -1, -1))
        self._generations = [0] * num_slots
        self._uses = [0] * num_blocks
        self._in_use = 0
        self._leases: dict[int, Lease] = {}
        self._quarantined: dict[int, Lease] = {}
        self._opened = 0

    def __repr__(self) -> str:
        return repr(self.snapshot())

    @property
    def available_blocks(self) -> int:
        """Blocks that can be leased now, idle cached ones included."""
        return len(self._free_blocks) + self.cache.idle

    @property
    def available_slots(self) -> int:
        return len(self._free_slots)

    def open(self, holder: Holder) -> Lease:
        """Lease a free slot to `holder`; raises `LedgerError` when none is free."""
        if not self._free_slots:
            raise LedgerError("no slot is free")
        slot = self._free_slots.pop()
        self._generations[slot] += 1
        self._opened += 1
        lease = Lease(self._opened, slot, self._generations[slot], {holder})
        self._leases[lease.number] = lease
        self._note_holders(lease)
        return lease

    def share(self, lease: Lease, blocks: Sequence[int]) -> None:
        """Let `lease` hold cached `blocks` as well, in block-table order."""
        self._check_open(lease)
        for block in blocks:
            if block not in self.cache:
                raise LedgerError(f"block {block} is not cached")
        for block in blocks:
            self.cache.mark_used(block)
            self._take(block)
        lease.blocks.extend(blocks)

    def grow(self, lease: Lease, count: int) -> list[int]:
        """Give `lease` `count` fresh blocks, evicting idle cached ones as needed; all or none.

        Raises `LedgerError` when fewer than `count` are available: callers ask `available_blocks` first.
        """
        self._check_open(lease)
        if count > self.available_blocks:
            raise LedgerError(f"{count} blocks wanted, {self.available_blocks} available")
        fresh = [self._free_blocks.pop() if self._free_blocks else self.cache.evict() for _ in range(count)]
        for block in fresh:
            self._take(block)
        lease.blocks.extend(fresh)
        return fresh

    def hold(self, lease: Lease, holder: Holder) -> None:
        """Add a holder; raises when it holds the lease already."""
        self._check_open(lease)
        if holder in lease.holders:
            raise LedgerError(f"{holder} holds {lease} already")
        lease.holders.add(holder)
        self._note_holders(lease)

    def release(self, lease: Lease, holder: Holder) -> bool:
        """Take `holder` off the lease; True when it was the last one and everything is free again."""
        self._check_open(lease)
        if holder not in lease.holders:
            raise LedgerError(f"{holder} does not hold {lease}")
        lease.holders.remove(holder)
        self._note_holders(lease)
        if lease.holders:
            return False
        del self._leases[lease.number]
        self._free_slots.append(lease.slot)
        # In reverse, so that the end of a text is forgotten before its beginning.
        for block in reversed(lease.blocks):
            self._let_go(block)
        return True

    def publish(self, lease: Lease, index: int, name: BlockHash) -> None:
        """Make the `index`-th block of `lease`, fully computed by a landed step, known to the prefix cache."""
        self._check_open(lease)
        self.cache.publish(name, lease.blocks[index])

    def leases(self) -> list[Lease]:
        """All open leases, oldest first."""
        return list(self._leases.values())

    def snapshot(self) -> LedgerSnapshot:
        quarantined = self._quarantined_blocks()
        return LedgerSnapshot(
            total=self.num_blocks,
            free=len(self._free_blocks),
            cached=self.cache.idle,
            leased=self._in_use - len(quarantined),
            quarantined=len(quarantined),
            slots_total=self.num_slots,
            slots_free=len(self._free_slots),
            slots_leased=len(self._leases),
        )

    def audit(self) -> None:
        """Recount everything from the leases; raises `LedgerError` naming the first thing that does not add up."""
        uses = Counter(block for lease in self._leases.values() for block in lease.blocks)
        if uses != Counter({block: count for block, count in enumerate(self._uses) if count}):
            raise LedgerError("block counts differ from the leases")
        free = set(self._free_blocks)
        if len(free) != len(self._free_blocks) or any(block in uses or block in self.cache for block in free):
            raise LedgerError("a free block is held")
        idle = {block for block in self.cache.blocks if block not in uses}
        if self.cache.idle != len(idle) or not all(self.cache.is_idle(block) for block in idle):
            raise LedgerError("the cache's idle blocks are not those that only it holds")
        if self._in_use != len(uses) or len(free) + len(idle) + len(uses) != self.num_blocks:
            raise LedgerError(f"{len(free)} free + {len(idle)} cached + {len(uses)} leased != {self.num_blocks} blocks")
        slots = [lease.slot for lease in self._leases.values()]
        if sorted(slots + self._free_slots) != list(range(self.num_slots)):
            raise LedgerError("slots do not add up")
        if self._quarantined != {number: lease for number, lease in self._leases.items() if lease.quarantined}:
            raise LedgerError("the quarantined leases are not those that only transfers hold")
        if any(not lease.holders for lease in self._leases.values()):
            raise LedgerError("a lease without holders is open")

    def _check_open(self, lease: Lease) -> None:
        if self._leases.get(lease.number) is not lease:
            raise LedgerError(f"{lease} is not open")

    def _take(self, block: int) -> None:
        self._in_use += not self._uses[block]
        self._uses[block] += 1

    def _let_go(self, block: int) -> None:
        self._uses[block] -= 1
        if self._uses[block]:
            return
        self._in_use -= 1
        if block in self.cache:
            self.cache.mark_idle(block)
        else:
            self._free_blocks.append(block)

    def _note_holders(self, lease: Lease) -> None:
        if lease.quarantined:
            self._quarantined[lease.number] = lease
        else:
            self._quarantined.pop(lease.number, None)

    def _quarantined_blocks(self) -> set[int]:
        quarantined = {block for lease in self._quarantined.values() for block in lease.blocks}
        if quarantined:
            quarantined -= {b for lease in self._leases.values() if not lease.quarantined for b in lease.blocks}
        return quarantined
