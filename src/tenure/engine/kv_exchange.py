"""What the loop does for other engines: prompts are fetched before they start, and handed over when they finish.

Owned by the loop, in its thread. The I/O thread's side is `engine.kv_service`; orders and `ExchangePort` lie between.
"""

from collections.abc import Iterable
from typing import Protocol

from tenure.core.fetches import Fetch, Fetches
from tenure.core.handovers import Handovers
from tenure.core.report import Output
from tenure.core.request import Request
from tenure.core.scheduler import Scheduler
from tenure.engine.orders import EndTransfer, ExchangeOrder, FreeTicket, GrantClaim, RefuseClaim, SettleFetch


class ExchangePort(Protocol):
    """What the loop asks of the I/O thread."""

    def fetch(self, fetches: list[Fetch]) -> None:
        """Have these read; each is answered by `EndTransfer` and `SettleFetch`."""
        ...

    def freed(self, number: int) -> None:
        """The blocks of a ticket are let go of."""
        ...


class KVExchange:
    """See the module's docstring. Fetches hold `limit` blocks at most; what is lost is computed here, or ends."""

    def __init__(self, scheduler: Scheduler, limit: int, port: ExchangePort, *, recompute: bool) -> None:
        self._port = port
        self._fetches = Fetches(scheduler, limit, recompute=recompute)
        self._handovers = Handovers(scheduler.ledger)

    def add(self, request: Request) -> None:
        """Take note of a request that the scheduler was given."""
        self._fetches.add(request)

    def apply(self, order: ExchangeOrder) -> list[Request]:
        """Carry out an order; returns what ends by it and holds nothing any more."""
        match order:
            case GrantClaim(claim):
                self._fetches.grant(claim)
            case RefuseClaim(claim):
                return self._fetches.refuse(claim)
            case EndTransfer(transfer):
                self._fetches.end_transfer(transfer)
            case SettleFetch(transfer, confirmed):
                return self._fetches.settle(transfer, confirmed=confirmed)
            case FreeTicket(number):
                self._handovers.release(number)
                self._port.freed(number)
        return []

    def begin(self) -> None:
        """Begin the fetches for which there is room."""
        if fetches := self._fetches.begin():
            self._port.fetch(fetches)

    def note(self, outputs: Iterable[Output], ended: Iterable[Request]) -> None:
        """Take note of what the scheduler has returned."""
        for output in outputs:
            self._handovers.take(output)
        for request in ended:
            self._fetches.close(request)

    @property
    def unmatched(self) -> int:
        """Orders that came too late to mean anything."""
        return self._fetches.unmatched + self._handovers.unmatched

    def audit(self) -> None:
        """Raises `LedgerError` naming what does not add up."""
        self._fetches.audit()
        self._handovers.audit()
