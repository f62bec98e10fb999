"""Who holds which KV blocks and slots of one engine.

A lease has a set of named holders: a `BlockLease` the blocks of one block table, a `SlotLease` a slot. An item that
runs has both; the steps that use them hold them, too. A transfer that may still write into blocks holds their lease,
and so does a ticket, under which another engine may read them. The last holder's leaving frees what was leased; there
is no other way to free anything. Letting go twice, or as a stranger, raises and changes nothing.

    free --grow--> leased --last holder lets go--> free, or cached when the prefix cache knows the block
    leased --only transfers are left--> quarantined --the last of them lets go--> free
    cached --share--> leased;  cached --evict--> leased (under a new owner)

Each block is counted once: leased (a lease that not only transfers hold), else quarantined, else cached, else free.
Conservation: free + cached + leased + quarantined = total for blocks, free + leased = total for slots.

The leases are the truth. Derived from them, and compared with them by `audit`: for each block the number of leases that
have it, those that are quarantined counted apart, and how many blocks are leased and quarantined.
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
    TICKET = "ticket"
    TRANSFER = "transfer"


_USERS = frozenset({HolderKind.ITEM, HolderKind.STEP})


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
    """Something with named holders, until the last of them lets go. Only the ledger changes it."""

    number: int
    holders: set[Holder]
    users: int = field(init=False)
    """How many of them are items or steps."""

    def __post_init__(self) -> None:
        self.users = sum(holder.kind in _USERS for holder in self.holders)

    def __repr__(self) -> str:
        holders = ", ".join(sorted(map(str, self.holders)))
        return f"<{type(self).__name__} {self.number}, held by {holders or 'nobody'}>"

    @property
    def quarantined(self) -> bool:
        """Only transfers hold it: they may still write, so nobody else may have what is leased."""
        transfers = (holder.kind is HolderKind.TRANSFER for holder in self.holders)
        return not self.users and bool(self.holders) and all(transfers)


@dataclass(slots=True, eq=False, repr=False)
class SlotLease(Lease):
    """A slot of the model runner, in one of its generations."""

    slot: int
    generation: int


@dataclass(slots=True, eq=False, repr=False)
class BlockLease(Lease):
    """The blocks of one block table, in order."""

    blocks: list[int] = field(default_factory=list)


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
        self._quarantines = [0] * num_blocks
        self._leased = 0
        self._quarantined = 0
        self._leases: dict[int, Lease] = {}
        self._leased_slots = 0
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

    def open_slot(self, holder: Holder) -> SlotLease:
        """Lease a free slot to `holder`; raises `LedgerError` when none is free."""
        if not self._free_slots:
            raise LedgerError("no slot is free")
        slot = self._free_slots.pop()
        self._generations[slot] += 1
        self._leased_slots += 1
        self._opened += 1
        lease = self._leases[self._opened] = SlotLease(self._opened, {holder}, slot, self._generations[slot])
        return lease

    def open_blocks(self, holder: Holder) -> BlockLease:
        """A lease for blocks, which has none yet."""
        self._opened += 1
        lease = self._leases[self._opened] = BlockLease(self._opened, {holder})
        return lease

    def share(self, lease: BlockLease, blocks: Sequence[int]) -> None:
        """Let `lease` hold cached `blocks` as well, in block-table order."""
        self._check_usable(lease)
        for block in blocks:
            if block not in self.cache:
                raise LedgerError(f"block {block} is not cached")
        for block in blocks:
            self.cache.mark_used(block)
        self._take(lease, blocks)

    def grow(self, lease: BlockLease, count: int) -> list[int]:
        """Give `lease` `count` fresh blocks, evicting idle cached ones as needed; all or none.

        Raises `LedgerError` when fewer than `count` are available: callers ask `available_blocks` first.
        """
        self._check_usable(lease)
        if count > self.available_blocks:
            raise LedgerError(f"{count} blocks wanted, {self.available_blocks} available")
        fresh = [self._free_blocks.pop() if self._free_blocks else self.cache.evict() for _ in range(count)]
        self._take(lease, fresh)
        return fresh

    def hold(self, lease: Lease, holder: Holder) -> None:
        """Add a holder; raises when it holds the lease already, or when only transfers do."""
        self._check_usable(lease)
        if holder in lease.holders:
            raise LedgerError(f"{holder} holds {lease} already")
        lease.holders.add(holder)
        lease.users += holder.kind in _USERS

    def release(self, lease: Lease, holder: Holder) -> bool:
        """Take `holder` off the lease; what was leased is free again when it was the last one.

        Returns whether it was the last item or step: if others hold the lease still, they are tickets and transfers.
        """
        self._check_open(lease)
        if holder not in lease.holders:
            raise LedgerError(f"{holder} does not hold {lease}")
        was_quarantined = not lease.users and lease.quarantined
        lease.holders.remove(holder)
        lease.users -= holder.kind in _USERS
        if lease.users:
            return False
        if isinstance(lease, BlockLease):
            quarantined = lease.quarantined
            uses = bool(lease.holders) and not quarantined
            self._count(lease.blocks, uses - (not was_quarantined), quarantined - was_quarantined)
        if not lease.holders:
            self._free(lease)
        return True

    def _free(self, lease: Lease) -> None:
        del self._leases[lease.number]
        if isinstance(lease, SlotLease):
            self._leased_slots -= 1
            self._free_slots.append(lease.slot)
        elif isinstance(lease, BlockLease):
            # In reverse, so that the end of a text is forgotten before its beginning.
            for block in reversed(lease.blocks):
                self._let_go(block)

    def publish(self, lease: BlockLease, index: int, name: BlockHash) -> None:
        """Make the `index`-th block of `lease`, fully computed by a landed step, known to the prefix cache."""
        self._check_open(lease)
        self.cache.publish(name, lease.blocks[index])

    def leases(self) -> list[Lease]:
        """All open leases."""
        return list(self._leases.values())

    def held_by(self, kind: HolderKind) -> set[tuple[int, int]]:
        """What holders of a kind hold: their numbers, with those of the leases."""
        return {(h.number, lease.number) for lease in self.leases() for h in lease.holders if h.kind is kind}

    def snapshot(self) -> LedgerSnapshot:
        return LedgerSnapshot(
            total=self.num_blocks,
            free=len(self._free_blocks),
            cached=self.cache.idle,
            leased=self._leased,
            quarantined=self._quarantined,
            slots_total=self.num_slots,
            slots_free=len(self._free_slots),
            slots_leased=self._leased_slots,
        )

    def audit(self) -> None:
        """Recount everything from the leases; raises `LedgerError` naming the first thing that does not add up."""
        leases = [lease for lease in self.leases() if isinstance(lease, BlockLease)]
        uses = Counter(block for lease in leases if not lease.quarantined for block in lease.blocks)
        quarantines = Counter(block for lease in leases if lease.quarantined for block in lease.blocks)
        for found, counted in ((uses, self._uses), (quarantines, self._quarantines)):
            if found != Counter({block: count for block, count in enumerate(counted) if count}):
                raise LedgerError("block counts differ from the leases")
        if (self._leased, self._quarantined) != (len(uses), len(quarantines.keys() - uses.keys())):
            raise LedgerError("the blocks in use, or in quarantine, are not those of the leases")
        held = uses.keys() | quarantines.keys()
        free = set(self._free_blocks)
        if len(free) != len(self._free_blocks) or any(block in held or block in self.cache for block in free):
            raise LedgerError("a free block is held")
        idle = {block for block in self.cache.blocks if block not in held}
        if self.cache.idle != len(idle) or not all(self.cache.is_idle(block) for block in idle):
            raise LedgerError("the cache's idle blocks are not those that only it holds")
        if len(free) + len(idle) + len(held) != self.num_blocks:
            raise LedgerError(f"{len(free)} free + {len(idle)} cached + {len(held)} held != {self.num_blocks} blocks")
        slots = [lease.slot for lease in self.leases() if isinstance(lease, SlotLease)]
        if len(slots) != self._leased_slots or sorted(slots + self._free_slots) != list(range(self.num_slots)):
            raise LedgerError("slots do not add up")
        for lease in self.leases():
            if not lease.holders or lease.users != sum(holder.kind in _USERS for holder in lease.holders):
                raise LedgerError(f"{lease} is open without holders, or its users are miscounted")

    def _check_open(self, lease: Lease) -> None:
        if self._leases.get(lease.number) is not lease:
            raise LedgerError(f"{lease} is not open")

    def _check_usable(self, lease: Lease) -> None:
        self._check_open(lease)
        if not lease.users and lease.quarantined:
            raise LedgerError(f"{lease} is quarantined")

    def _take(self, lease: BlockLease, blocks: Sequence[int]) -> None:
        self._count(blocks, uses=1)
        lease.blocks.extend(blocks)

    def _count(self, blocks: Sequence[int], uses: int, quarantines: int = 0) -> None:
        """Note that so many leases more have these blocks, and so many more that are quarantined."""
        for block in blocks if uses or quarantines else ():
            leased, quarantined = self._uses[block] > 0, self._quarantines[block] > 0
            self._uses[block] += uses
            self._quarantines[block] += quarantines
            now_leased, now_quarantined = self._uses[block] > 0, self._quarantines[block] > 0
            self._leased += now_leased - leased
            self._quarantined += (now_quarantined and not now_leased) - (quarantined and not leased)

    def _let_go(self, block: int) -> None:
        if self._uses[block] or self._quarantines[block]:
            return
        if block in self.cache:
            self.cache.mark_idle(block)
        else:
            self._free_blocks.append(block)
