"""The connection of an API process to one engine, kept up for as long as the process lives.

    connecting --connected--> loading --Ready--> ready --connection lost--> connecting

State, owned by the task that runs `run`: the connection, the card, the engine's load, and `_open`, the handles of all
requests that the engine may hold something of. When the connection is lost, every handle in it is told so at once; an
engine's death has no other sign, for whether a silent one is dead is for its supervisor to judge. Messages that fit no
open request, or not its state, are ignored.
"""

import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count

import anyio
import msgspec
from anyio.abc import TaskGroup

from tenure.client.generation import GenerationFailed, GenerationHandle, HandleState
from tenure.errors import EndingError, Refusal, too_large
from tenure.outcomes import Outcome
from tenure.wire import messages as wire
from tenure.wire.conversation import converse
from tenure.wire.framing import Channel
from tenure.wire.outbox import Outbox, OutboxFull
from tenure.wire.sockets import SocketStream, connect

logger = logging.getLogger("tenure.client")

_RECONNECT_AFTER = 0.1
_CANCEL_TIMEOUT = 60.0
"""How long a cancelled handler waits for the acknowledgement. The engine's death ends the wait sooner."""


Answer = wire.LedgerReply | wire.CancelledByName
EndNamed = Callable[[wire.CancelByName], Awaitable[list[wire.CancelledRequest]]]
"""Ends the requests of this process that are named; returns them when they are over, with those that had ended."""


def client_left() -> Outcome:
    """The default cause of a cancel: `client_cancelled`."""
    return Outcome.CLIENT_CANCELLED


async def no_requests(_names: wire.CancelByName) -> list[wire.CancelledRequest]:
    """An `EndNamed` of a process that has none."""
    return []


class EngineClient:
    """One engine, reached through the Unix socket at `path`.

    `stall_timeout`: seconds for which a generation may be stalled in all, because its reader does not keep up.
    `on_cancelled` is told how long each cancel took until the engine held nothing of the request. `process` stands for
    this process in ids; `end_named` is called for cancels by name that other API processes ask for.
    """

    def __init__(
        self,
        path: str,
        *,
        worker: int = 0,
        stall_timeout: float = math.inf,
        on_cancelled: Callable[[float], None] = lambda _seconds: None,
        process: str = "",
        end_named: EndNamed = no_requests,
    ) -> None:
        self.card: wire.ModelCard | None = None
        """What the engine said of its model; None while it is not ready."""
        self._path = path
        self._hello = wire.Hello(worker=worker, process=process)
        self._stall_timeout = stall_timeout
        self._on_cancelled = on_cancelled
        self._end_named = end_named
        self._outbox: Outbox | None = None
        self._speaks = False  # a stopped engine's socket takes connections, too
        self._open: dict[int, GenerationHandle] = {}
        self._tokens = 0
        self._answers: dict[int, Answer | None] = {}
        self._answered = anyio.Event()
        self._became_ready = anyio.Event()
        self._numbers = count(1)

    @property
    def ready(self) -> bool:
        """The engine admits requests."""
        return self.card is not None

    @property
    def outstanding_tokens(self) -> int:
        """Prompt tokens that are open in the engine, by its last heartbeat and what this process did since."""
        return max(0, self._tokens)

    @property
    def open_requests(self) -> int:
        return len(self._open)

    async def wait_ready(self) -> None:
        """Wait until the engine admits requests."""
        while not self.ready:
            await self._became_ready.wait()

    # what handlers use

    @asynccontextmanager
    async def open(
        self, submit: wire.Submit, cause: Callable[[], Outcome] = client_left
    ) -> AsyncIterator[GenerationHandle]:
        """Have a request admitted (its `request` number is set here), and hold it for as long as the scope lasts.

        Raises Refusal; also for a request that is larger than all open ones may be together: it is not even sent, as
        its message might be too large for the connection that all share. Leaving the scope before the request is over
        cancels it, and waits, shielded, until the engine holds nothing of it. When it is left because the task is
        cancelled, `cause` tells why. What runs in it for longer than its reader may stall it ends as GenerationFailed.
        """
        if self.card is None:
            raise unavailable()
        items, most = len(submit.prompts) * submit.n, self.card
        if refusal := too_large(items, submit.prompts.total, most.most_items, most.most_prompt_tokens):
            raise refusal
        handle = self._submit(submit)
        try:
            await handle.wait_admitted()
            with handle.scope:
                yield handle
            if handle.scope.cancelled_caught:
                raise GenerationFailed(Outcome.STALLED, "the client stopped reading the response")
        except anyio.get_cancelled_exc_class():
            await self._cancel(handle, cause())
            raise
        except EndingError as error:
            await self._cancel(handle, error.outcome)
            raise
        except BaseException:
            await self._cancel(handle, Outcome.ENGINE_ERROR)
            raise
        else:
            await self._cancel(handle, Outcome.ABORTED)

    async def ledger(self, timeout: float = 1.0, *, holders: bool = False) -> wire.EngineLedger | None:
        """The engine's ledger; None when it does not answer in time, or is not connected.

        `holders` are left out when a step runs for longer than half of that time.
        """
        for wanted in (True, False) if holders else (False,):
            reply = await self._ask(wire.AskLedger(sequence=0, holders=wanted), timeout / 2 if holders else timeout)
            if isinstance(reply, wire.LedgerReply):
                return reply.ledger
        return None

    async def cancel_by_name(self, names: wire.CancelByName) -> wire.CancelledByName | None:
        """Have other API processes end requests; the answer comes when nothing is held of them.

        None when none comes in time, or the engine is away.
        """
        reply = await self._ask(names, _CANCEL_TIMEOUT)
        return reply if isinstance(reply, wire.CancelledByName) else None

    def release_tickets(self, tickets: Sequence[str]) -> None:
        """Tell of tickets that came with a request which does not enter."""
        self._send(wire.ReleaseTickets(tickets=list(tickets)))

    async def _ask(self, question: wire.AskLedger | wire.CancelByName, timeout: float) -> Answer | None:
        """The answer to a question, whose `sequence` is set here; None as in `ledger`."""
        if not self._speaks:
            return None
        number = next(self._numbers)
        self._answers[number] = None
        try:
            self._send(msgspec.structs.replace(question, sequence=number))
            with anyio.move_on_after(timeout):
                while self._answers[number] is None and self._outbox is not None:
                    await self._answered.wait()
            return self._answers[number]
        finally:
            del self._answers[number]

    def _submit(self, submit: wire.Submit) -> GenerationHandle:
        number, tokens = next(self._numbers), submit.prompts.total
        # What is pooled waits for this process alone: nothing of it is sent before all of it is there.
        stall_timeout = math.inf if submit.pooling is not None else self._stall_timeout
        handle = GenerationHandle(number, self._send, tokens, stall_timeout)
        self._send(msgspec.structs.replace(submit, request=number))
        self._open[number] = handle  # after it could be encoded: a request that was not sent has no ending
        self._tokens += tokens
        return handle

    async def _cancel(self, handle: GenerationHandle, outcome: Outcome) -> None:
        if handle.over:
            return
        started = time.monotonic()
        self._send(wire.Cancel(request=handle.number, outcome=outcome))
        with anyio.move_on_after(_CANCEL_TIMEOUT, shield=True):
            await handle.wait_over()
        if handle.over:
            self._on_cancelled(time.monotonic() - started)
        else:
            logger.error("the engine has not acknowledged a cancel within %.0f s", _CANCEL_TIMEOUT)

    def _send(self, message: wire.ToEngine) -> None:
        if self._outbox is None:
            return  # lost; every handle has been told
        try:
            self._outbox.put(message)
        except OutboxFull as error:
            logger.warning("engine at %s: %s", self._path, error)

    # the connection

    async def run(self) -> None:
        """Keep the connection up until cancelled."""
        while True:
            try:
                stream = await connect(self._path)
            except OSError as error:
                logger.debug("engine at %s: %s", self._path, error)
                await anyio.sleep(_RECONNECT_AFTER)
                continue
            await self._converse(stream)
            await anyio.sleep(_RECONNECT_AFTER)

    async def _converse(self, stream: SocketStream) -> None:
        channel: Channel[wire.FromEngine] = Channel(stream, wire.FromEngine)
        try:
            self._outbox = Outbox(channel, send_now=stream.send_now)
            self._outbox.put(self._hello)
            reason = await converse(channel, self._outbox, self._take)
            # While it loads, its supervisor tells why it ended.
            logger.log(logging.WARNING if self.ready else logging.DEBUG, "engine at %s: %s", self._path, reason)
        finally:
            self._lose()
            with anyio.CancelScope(shield=True):
                await channel.aclose()

    def _take(self, message: wire.FromEngine, group: TaskGroup) -> None:
        self._speaks = True
        if isinstance(message, wire.CancelByName):
            group.start_soon(self._cancel_for_others, message)
        else:
            self._handle(message)

    def _handle(self, message: wire.FromEngine) -> None:
        match message:
            case wire.StepOutput(outputs=outputs):
                for output in outputs:
                    if (handle := self._match(output.request, HandleState.ADMITTED)) is not None:
                        handle.deliver(output)
            case wire.Admitted(request=number):
                if (handle := self._match(number, HandleState.SUBMITTED)) is not None:
                    handle.admit()
            case wire.Refused(request=number):
                if (handle := self._match(number, HandleState.SUBMITTED)) is not None:
                    self._close(handle)
                    handle.refuse(message)
            case wire.Ended(request=number):
                if (handle := self._match(number, HandleState.ADMITTED)) is not None:
                    self._close(handle)
                    handle.end(message)
            case wire.Heartbeat(outstanding_tokens=tokens):
                self._tokens = tokens
            case wire.LedgerReply(sequence=number) | wire.CancelledByName(sequence=number):
                if number in self._answers:  # else it was not waited for any longer
                    self._answers[number] = message
                    self._wake_askers()
            case wire.Ready(card=card):
                self._set_card(card)
            case wire.Unready(reason=reason):
                self._set_card(None)
                logger.debug("engine at %s: %s", self._path, reason)

    async def _cancel_for_others(self, names: wire.CancelByName) -> None:
        self._send(wire.CancelledByName(sequence=names.sequence, requests=await self._end_named(names)))

    def _match(self, number: int, state: HandleState) -> GenerationHandle | None:
        """The open request that a message is about, if it is one that such a message may be about now."""
        handle = self._open.get(number)
        return handle if handle is not None and handle.state is state else None

    def _close(self, handle: GenerationHandle) -> None:
        del self._open[handle.number]
        self._tokens -= handle.tokens

    def _set_card(self, card: wire.ModelCard | None) -> None:
        """`_became_ready` is set while it is ready; those who wait for it keep the event that will be set."""
        self.card = card
        if self.ready:
            self._became_ready.set()
        elif self._became_ready.is_set():
            self._became_ready = anyio.Event()

    def _wake_askers(self) -> None:
        self._answered.set()
        self._answered = anyio.Event()

    def _lose(self) -> None:
        """The connection is lost: end all open requests as lost."""
        self._speaks = False
        self._tokens = 0
        self._set_card(None)
        self._outbox = None
        self._wake_askers()
        lost, self._open = self._open, {}
        for handle in lost.values():
            handle.lose()


def unavailable() -> Refusal:
    """The Refusal while no engine is ready."""
    message = "the engine is not ready; try again shortly"
    return Refusal(Outcome.UNAVAILABLE, "engine_unavailable", message)
