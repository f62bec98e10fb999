"""The steps in flight: planned, perhaps computed, not landed yet.

    launch(number, planned) --> in flight --take(result), oldest first--> landed, and forgotten

Owned by the scheduler. A step is a holder of the leases of each of its rows from `launch` on; the scheduler lets them
go, row by row, when it lands.
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tenure.core.ledger import Holder, HolderKind, Ledger, LedgerError
from tenure.core.plan import Row, RowResult, StepResult
from tenure.core.request import Item
from tenure.core.runs import Run


class PlannedRow(NamedTuple):
    """A row of a plan, with its run."""

    run: Run
    row: Row


def holder_of(number: int) -> Holder:
    """The name under which a step holds leases."""
    return Holder(HolderKind.STEP, number)


class StepsInFlight:
    """See the module's docstring."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._steps: OrderedDict[int, Sequence[PlannedRow]] = OrderedDict()

    def launch(self, number: int, planned: Sequence[PlannedRow]) -> None:
        holder = holder_of(number)
        for entry in planned:
            self._ledger.hold(entry.run.slot, holder)
            self._ledger.hold(entry.run.lease, holder)
        self._steps[number] = planned

    def take(self, result: StepResult) -> Iterable[tuple[PlannedRow, RowResult]] | None:
        """The oldest step's rows with their results; None when the step is not in flight.

        Results that do not answer the plan row by row, or come out of order, raise `LedgerError` and change nothing.
        """
        planned = self._steps.get(result.number)
        if planned is None:
            return None
        if result.number != next(iter(self._steps)):
            raise LedgerError(f"step {result.number} lands before an older one")
        answered = [(row.slot, row.generation) for row in result.rows]
        if answered != [(entry.row.slot, entry.row.generation) for entry in planned]:
            raise LedgerError(f"the results of step {result.number} do not match its rows")
        del self._steps[result.number]
        return list(zip(planned, result.rows, strict=True))

    def items_of(self, number: int) -> list[Item]:
        """The items of the rows of a step in flight, in order."""
        return [entry.run.item for entry in self._steps[number]]

    @property
    def leaving(self) -> bool:
        """Whether an item of a step in flight has ended or was evicted, so that its leases are freed when it lands."""
        return any(not entry.run.current for planned in self._steps.values() for entry in planned)

    def audit(self) -> None:
        """Raises `LedgerError` when steps hold other leases than those of their rows."""
        if self._ledger.held_by(HolderKind.STEP) != {
            (number, lease.number)
            for number, planned in self._steps.items()
            for entry in planned
            for lease in (entry.run.slot, entry.run.lease)
        }:
            raise LedgerError("the steps in flight and what they hold disagree")
