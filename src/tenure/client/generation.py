"""An open request as its handler sees it.

    submitted --Admitted--> admitted --Ended--> ended        submitted --Refused--> refused
    submitted or admitted --the engine is lost--> lost

Only the connection's receive task changes the state; the handler's task waits for it. When more than `STALL_ABOVE`
bytes wait to be received, because their reader does not keep up, the engine is asked to stall the request; when they
have been taken, to go on. When it has been stalled for longer than it may be in all, its handler is cancelled.
"""

import math
import time
from collections.abc import Callable
from enum import Enum
from typing import Protocol

import anyio

from tenure.errors import EndingError, Refusal, ResourceError
from tenure.outcomes import Outcome
from tenure.wire.messages import Ended, FinishItem, ItemOutput, Refused, Resume, Stall, ToEngine


class GenerationFailed(ResourceError, EndingError):
    """An admitted request ended otherwise than `ok`."""


class EndOfGeneration(Exception):
    """The request ended as `ok` and everything has been received."""


class HandleState(Enum):
    SUBMITTED = "submitted"
    ADMITTED = "admitted"
    ENDED = "ended"
    REFUSED = "refused"
    LOST = "lost"


class Watcher(Protocol):
    """Callbacks for the events of an admitted request; times are monotonic seconds."""

    def admitted(self, now: float) -> None: ...

    def output(self, output: ItemOutput, now: float) -> None: ...

    def ended(self, ended: Ended | None, now: float) -> None:
        """The engine holds nothing any more; None when it was lost."""
        ...


STALL_ABOVE = 1024 * 1024
"""Bytes of outputs, by an upper estimate."""
OUTPUT_BYTES = 4096
"""What an output may take up with the text and the event that are made of it, without logprobs and vectors."""


class GenerationHandle:
    """See the module's docstring. `order` sends a message about the request to its engine.

    `tokens` are those of its prompts; `stall_timeout` is for how many seconds it may be stalled in all.
    """

    def __init__(
        self, number: int, order: Callable[[ToEngine], None], tokens: int = 0, stall_timeout: float = math.inf
    ) -> None:
        self.number = number
        self.tokens = tokens
        self._waiting_bytes = 0
        self._stalled = False
        self._stall_time_left = stall_timeout  # what is left of it
        self.scope = anyio.CancelScope()
        """What the handler does with the request; cancelled when it has been stalled for `stall_timeout`."""
        self.state = HandleState.SUBMITTED
        self._watcher: Watcher | None = None
        self._early_events: list[Callable[[Watcher], None]] = []  # replayed to a watcher that is set later
        self._order = order
        self._outputs: list[ItemOutput] = []
        self._changed = anyio.Event()
        self._refusal: Refusal | None = None
        self._ended: Ended | None = None

    def __repr__(self) -> str:
        return f"<GenerationHandle {self.number}: {self.state.value}>"

    @property
    def over(self) -> bool:
        """The engine holds nothing of the request."""
        return self.state not in (HandleState.SUBMITTED, HandleState.ADMITTED)

    # the handler's side

    async def receive(self) -> list[ItemOutput]:
        """All outputs that have arrived, at least one. Raises EndOfGeneration, or GenerationFailed."""
        while not self._outputs:
            if self.state is HandleState.LOST:
                raise GenerationFailed(Outcome.UNAVAILABLE, "the engine was lost while it computed this request")
            if self._ended is not None:
                if self._ended.outcome is not Outcome.OK:
                    raise GenerationFailed(self._ended.outcome, self._ended.message)
                raise EndOfGeneration
            await self._changed.wait()
        outputs, self._outputs, self._waiting_bytes = self._outputs, [], 0
        if self._stalled:
            self._stalled = False
            self._stall_time_left = self.scope.deadline - anyio.current_time()
            self.scope.deadline = math.inf
            self._order(Resume(request=self.number))
        return outputs

    def watch(self, watcher: Watcher) -> None:
        """Call `watcher` for the events of the request: those so far at once, later ones as they happen."""
        self._watcher = watcher
        events, self._early_events = self._early_events, []
        for event in events:
            event(watcher)

    def finish_item(self, index: int) -> None:
        """A stop string matched: the engine need not go on with this item."""
        if not self.over:
            self._order(FinishItem(request=self.number, index=index))

    async def wait_admitted(self) -> None:
        """Raises Refusal."""
        while self.state is HandleState.SUBMITTED:
            await self._changed.wait()
        if self.state is HandleState.LOST:
            raise Refusal(Outcome.UNAVAILABLE, "engine_unavailable", "the engine was lost; try again shortly")
        if self._refusal is not None:
            raise self._refusal

    async def wait_over(self) -> None:
        """Wait until the engine holds nothing of the request."""
        while not self.over:
            await self._changed.wait()

    # the receive task's side

    def admit(self) -> None:
        now = time.monotonic()
        self._notify(lambda watcher: watcher.admitted(now))
        self._change(HandleState.ADMITTED)

    def refuse(self, refused: Refused) -> None:
        self._refusal = Refusal(refused.outcome, refused.code, refused.message, refused.retry_after)
        self._change(HandleState.REFUSED)

    def deliver(self, output: ItemOutput) -> None:
        now = time.monotonic()
        if self._watcher is not None:
            self._watcher.output(output, now)
        else:
            self._notify(lambda watcher: watcher.output(output, now))
        self._outputs.append(output)
        self._waiting_bytes += OUTPUT_BYTES + output.size
        if self._waiting_bytes > STALL_ABOVE and not self._stalled:
            self._stalled = True
            self.scope.deadline = anyio.current_time() + self._stall_time_left
            self._order(Stall(request=self.number))
        self._wake()

    def end(self, ended: Ended) -> None:
        self._ended = ended
        self._finished(ended)
        self._change(HandleState.ENDED)

    def lose(self) -> None:
        if self.state is HandleState.ADMITTED:
            self._finished(None)
        self._change(HandleState.LOST)

    def _finished(self, ended: Ended | None) -> None:
        now = time.monotonic()
        self._notify(lambda watcher: watcher.ended(ended, now))

    def _notify(self, event: Callable[[Watcher], None]) -> None:
        if self._watcher is None:
            self._early_events.append(event)
        else:
            event(self._watcher)

    def _change(self, state: HandleState) -> None:
        self.state = state
        if self.over:
            self.scope.deadline = math.inf  # nobody has to wait for its reader any more
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()
