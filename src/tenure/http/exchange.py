"""The guard's record of one HTTP request, from its headers until it is counted with its outcome.

States (`Stage`): `open` (nothing sent) -> `started` (headers sent) -> `finished` (last byte handed over). Orthogonal to
these an exchange may be *gone* (the client left first) or *failed* (`error` is set); the first of finished, gone and
failed decides the outcome, and `outcome()` is a pure function of what was stored.

Owners: the guard makes an exchange and alone counts it; its outlet changes `stage`; its watcher sets `gone_at`; any
code of the request may call `fail`, of which the first call counts; the guard records a refusal by the protocol.

Invariants: `stage` only moves forward; `gone_at` and `error` are each set at most once and never both, and never after
`finished`, except that an error answer is finished after `error` was set.
"""

import time
from enum import Enum
from typing import Any, Protocol

import anyio
from starlette.types import Message, Receive, Scope

from tenure.http.errors import ApiError
from tenure.http.intake import Body
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

    def __init__(self, head: RequestHead, body: Body) -> None:
        self.head = head
        self.journal: Any = None
        """What the guard's observer keeps of it; the guard does not look at it."""
        self.body = body
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
        """Whether the route counts as work: load, metrics and outcomes count work requests alone."""
        return self.head.route.work and not self.head.asks_options

    @property
    def decided(self) -> bool:
        """Whether the outcome can no longer change."""
        return self.stage is Stage.FINISHED or self.gone_at is not None or self.error is not None

    def time_left(self) -> float | None:
        """Seconds until the request's deadline, negative when it has passed; None without a deadline."""
        timeout = self.options.timeout
        return None if timeout is None else self.head.received_at + timeout - time.monotonic()

    def fail(self, error: ApiError) -> ApiError:
        """Record `error` unless the outcome is decided already. Returns the error to send to the client."""
        if not self.decided:
            self.error = error
        return self.error or error

    def note_refusal(self, error: ApiError) -> None:
        """Record that the protocol has refused the request and has written the response itself."""
        if not self.decided:
            self.error, self.status = error, error.status

    def check(self) -> None:
        """Raise the recorded error, if there is one. Called before a success is sent.

        Needed because a handler that was woken in the same cycle of the event loop runs on until its next await.
        """
        if self.error is not None:
            raise self.error

    def leave(self, now: float) -> None:
        """Record that the client has left; what was decided before stands."""
        if not self.decided:
            self.gone_at = now
        self.over.set()

    def outcome(self) -> Outcome:
        """The outcome of the request; final once its tasks have ended."""
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
    """Callbacks of the guard for one exchange, each called once at most and in this order."""

    def opened(self, exchange: Exchange) -> object:
        """The request's head was read. The returned value becomes `exchange.journal`."""

    def received(self, exchange: Exchange) -> None:
        """The body is complete; not called for a request without a body."""

    def closed(self, exchange: Exchange) -> None:
        """The request is over and `outcome()` is final."""


def inner_scope(scope: Scope, exchange: Exchange) -> Scope:
    """Return a copy of `scope` that holds `exchange` under `EXCHANGE_KEY`."""
    return {**scope, "extensions": {**scope.get("extensions", {}), EXCHANGE_KEY: exchange}}


def replay(exchange: Exchange) -> Receive:
    """Return an ASGI `receive` that gives the body once, then `http.disconnect` when the exchange is over."""
    given = False

    async def receive() -> Message:
        nonlocal given
        if not given:
            given = True
            return {"type": "http.request", "body": exchange.body.data, "more_body": False}
        await exchange.over.wait()
        return {"type": "http.disconnect"}

    return receive
