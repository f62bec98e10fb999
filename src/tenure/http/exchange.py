"""One HTTP request as the guard sees it, from its headers to its count out.

States (`Stage`): `open` (nothing sent) -> `started` (headers sent) -> `finished` (last byte handed over). Orthogonal to
these an exchange may be *gone* (the client left first) or *failed* (`error` is set); the first of finished, gone and
failed decides the outcome, and `outcome()` is a pure function of what was stored.

Owners: the guard makes an exchange and alone counts it; its outlet moves `stage`; its watcher sets `gone_at`; whoever
first sees a failure calls `fail`; the guard notes a refusal that the protocol has written.

Invariants: `stage` only moves forward; `gone_at` and `error` are each set at most once and never both, and never after
`finished`, except that an error answer is finished after `error` was set.
"""

import time
from enum import Enum
from typing import Any, Protocol

import anyio
from starlette.types import Message, Receive, Scope

from tenure.http.errors import ApiError
from tenure.http.request_head import RequestHead, RequestOptions
from tenure.outcomes import Outcome

EXCHANGE_KEY = "tenure.exchange"


class Stage(Enum):
    """How much of the response has been handed to the connection."""

    OPEN = "open"
    STARTED = "started"
    FINISHED = "finished"


class Exchange:
    """The guard's record of one request; see the module's text for who may change what."""

    def __init__(self, head: RequestHead) -> None:
        self.head = head
        self.journal: Any = None
        """What the guard's observer keeps of it; the guard does not look at it."""
        self.body = b""
        self.body_bytes = 0
        """Of the body, as far as it was read."""
        self.body_complete = False
        self.options = RequestOptions()
        self.stage = Stage.OPEN
        self.status = 0
        self.is_event_stream = False
        self.error: ApiError | None = None
        self.gone_at: float | None = None
        self.over = anyio.Event()
        """Set when the response is finished or the client has left: there is nothing more to receive."""
        self.scope = anyio.CancelScope()
        """Everything that runs for this request."""
        self.ended = anyio.Event()
        """Set by the guard when nothing runs, or is held, for it any more."""

    @property
    def work(self) -> bool:
        """Whether it is counted."""
        return self.head.route.work and not self.head.asks_options

    @property
    def decided(self) -> bool:
        """Whether the outcome can no longer change."""
        return self.stage is Stage.FINISHED or self.gone_at is not None or self.error is not None

    def time_left(self) -> float | None:
        """Seconds until it must be over, below 0 when it should be; None without a limit."""
        timeout = self.options.timeout
        return None if timeout is None else self.head.received_at + timeout - time.monotonic()

    def fail(self, error: ApiError) -> ApiError:
        """Record why the request fails; what was decided before stands. Returns what its client is to be told."""
        if not self.decided:
            self.error = error
        return self.error or error

    def note_refusal(self, error: ApiError) -> None:
        """Record that the protocol has refused the request, and answered it past the outlet."""
        if not self.decided:
            self.error, self.status = error, error.status

    def check(self) -> None:
        """Raise what the request failed of, if it has: nobody may tell its client otherwise any more.

        A handler that was woken in the same turn goes on until it next waits, and only then is cancelled.
        """
        if self.error is not None:
            raise self.error

    def leave(self, now: float) -> None:
        """Record that the client has left; what was decided before stands."""
        if not self.decided:
            self.gone_at = now
        self.over.set()

    def outcome(self) -> Outcome:
        """The one outcome, once nothing runs any more."""
        if self.gone_at is not None:
            return Outcome.CLIENT_CANCELLED
        if self.error is not None:
            return self.error.outcome
        if self.stage is not Stage.FINISHED:
            return Outcome.UNAVAILABLE  # cancelled from outside: the server ends
        if self.status < 400:
            return Outcome.OK
        return Outcome.INVALID if self.status < 500 else Outcome.ENGINE_ERROR


class Observer(Protocol):
    """What a guard tells of its exchanges, each of these once and in this order."""

    def opened(self, exchange: Exchange) -> object:
        """One has come. What is returned stays with it as its `journal`."""

    def received(self, exchange: Exchange) -> None:
        """Its body is complete; not told of one without a body."""

    def closed(self, exchange: Exchange) -> None:
        """It is over, and `outcome()` is final."""


def inner_scope(scope: Scope, exchange: Exchange) -> Scope:
    """What the guard hands inwards, for the innermost application to find the exchange in."""
    return {**scope, "extensions": {**scope.get("extensions", {}), EXCHANGE_KEY: exchange}}


def replay(exchange: Exchange) -> Receive:
    """A `receive` that gives the body once, and `http.disconnect` when the exchange is over."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": exchange.body, "more_body": False}
        await exchange.over.wait()
        return {"type": "http.disconnect"}

    return receive
