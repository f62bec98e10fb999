"""The blocks of prompts that were computed for another engine, until the loop is told to let go of them.

Runs beside the scheduler, in the same thread. A ticket has the number of its item, and holds the blocks from the item's
finish on, whatever becomes of its request. When it ends is decided elsewhere (see `core.tickets`).
"""

from tenure.core.ledger import BlockLease, Holder, HolderKind, Ledger, LedgerError
from tenure.core.report import Output


def ticket_of(lease: BlockLease) -> int:
    """The number of the ticket that holds a lease."""
    (number,) = (holder.number for holder in lease.holders if holder.kind is HolderKind.TICKET)
    return number


class Handovers:
    """See the module's docstring."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._leases: dict[int, BlockLease] = {}
        self.unmatched = 0

    def take(self, output: Output) -> int | None:
        """Take note of an output; returns the number of the ticket that holds blocks by it, if one does."""
        if (lease := output.handed_over) is None:
            return None
        number = ticket_of(lease)
        self._leases[number] = lease
        return number

    def release(self, number: int) -> bool:
        """Let go of the blocks of a ticket; one that holds nothing is counted, and False."""
        lease = self._leases.pop(number, None)
        if lease is None:
            self.unmatched += 1
            return False
        self._ledger.release(lease, Holder(HolderKind.TICKET, number))
        return True

    @property
    def blocks(self) -> int:
        """The number of blocks that tickets hold; what two of them share counts twice."""
        return sum(len(lease.blocks) for lease in self._leases.values())

    def audit(self) -> None:
        """Raises `LedgerError` when tickets hold others than these."""
        held = self._ledger.held_by(HolderKind.TICKET)
        if held != {(number, lease.number) for number, lease in self._leases.items()}:
            raise LedgerError("the tickets and what they hold disagree")
