"""The messages between the engine's I/O thread and its loop: orders one way; outputs, endings, snapshots the other.

Orders wait in a bounded queue, in the order in which they were given. Everything here is immutable.
"""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import msgspec

from tenure.core.report import Output, SchedulerSnapshot
from tenure.core.request import Request
from tenure.outcomes import Outcome
from tenure.wire.messages import HolderRow, StatsSnapshot


class Add(NamedTuple):
    make: Callable[[], Request]
    """Called in the loop's thread: a request of many tokens is not made of its message at once."""


class Cancel(NamedTuple):
    number: int
    outcome: Outcome


class Finish(NamedTuple):
    number: int
    item: int


class Stall(NamedTuple):
    number: int


class Resume(NamedTuple):
    number: int


class GrantClaim(NamedTuple):
    """The prompt of a claim can be fetched. These five are for engines with a `KVExchange`."""

    claim: int


class RefuseClaim(NamedTuple):
    """The prompt of a claim cannot be fetched."""

    claim: int


class EndTransfer(NamedTuple):
    """It is proven that a transfer writes no more."""

    transfer: int


class SettleFetch(NamedTuple):
    """What a transfer has read is the prompt's, or not."""

    transfer: int
    confirmed: bool


class FreeTicket(NamedTuple):
    """Let go of the blocks of a ticket; answered by `ExchangePort.freed`."""

    number: int


class ShowHolders(NamedTuple):
    """Have `Port.show` called."""


class Stop(NamedTuple):
    """The last order."""


ExchangeOrder = GrantClaim | RefuseClaim | EndTransfer | SettleFetch | FreeTicket
Change = Add | Cancel | Finish | Stall | Resume | ExchangeOrder
Order = Change | ShowHolders | Stop


class EngineSnapshot(msgspec.Struct, frozen=True, gc=False):
    """What the loop last published; holders are in it only when it was asked to show them."""

    scheduler: SchedulerSnapshot
    conserved: bool
    figures: StatsSnapshot = StatsSnapshot()
    holders: list[HolderRow] = []


class Progress(NamedTuple):
    """The number of the step that runs, or ran last, and whether it runs."""

    step: int
    runs: bool


class Ending(NamedTuple):
    """A request is over and holds nothing any more."""

    number: int
    outcome: Outcome
    message: str
    queue_seconds: float | None
    """From its arrival to its first row; None when it had none."""

    @classmethod
    def of(cls, request: Request, queue_seconds: float | None) -> "Ending":
        """The ending of a request that the scheduler has closed."""
        assert request.outcome is not None
        return cls(request.number, request.outcome, request.message, queue_seconds)


class Port(Protocol):
    """Receives the loop's outputs and snapshots; called in the loop's thread."""

    def publish(self, snapshot: EngineSnapshot) -> None: ...

    def show(self, snapshot: EngineSnapshot) -> None:
        """The answer to `ShowHolders`; it comes after all that was told before it."""
        ...

    def emit(self, step: int, outputs: list[Output], ended: list[Ending]) -> None: ...
