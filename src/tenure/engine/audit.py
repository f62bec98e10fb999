"""When the ledger is audited: while the engine is idle, and at most once a second.

    settled --something changed--> changed --idle, and a second since the last audit--> audited: settled

Owned by the engine loop.
"""

import logging
from collections.abc import Callable

from tenure.core.ledger import LedgerError
from tenure.core.scheduler import Scheduler

logger = logging.getLogger("tenure.engine")

_INTERVAL = 1.0


class IdleAudit:
    """See the module's docstring. `clock` is the loop's, in seconds."""

    def __init__(self, scheduler: Scheduler, clock: Callable[[], float]) -> None:
        self.conserved = True
        """No audit has found a fault."""
        self._scheduler = scheduler
        self._clock = clock
        self._changed = False
        self._audited_at = -_INTERVAL

    def note_change(self) -> None:
        """Something has happened: another audit is due."""
        self._changed = True

    @property
    def due_in(self) -> float | None:
        """Seconds until the next audit, if nothing happens before; None when none is needed."""
        if self._scheduler.busy or not self._changed:
            return None
        return max(0.0, self._audited_at + _INTERVAL - self._clock())

    def run(self) -> None:
        """Audit now. What does not add up is logged."""
        self._audited_at, self._changed = self._clock(), False
        try:
            self._scheduler.audit()
        except LedgerError:
            self.conserved = False
            logger.exception("the ledger does not add up")
