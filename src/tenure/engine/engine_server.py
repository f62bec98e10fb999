"""Everything of the engine that must answer at once: connections, the gate, endings, heartbeats.

Runs in the engine's I/O thread, on its event loop, and is never blocked by a step. State, owned by this thread:

- `_gate`: permits. One is held by each `_Open` entry, from its admission until the loop says that its request is over.
- `_open`: the admitted requests by the engine's own number; a connection has its own by the numbers it gave them.
- `_connections`: a connection is the holder of its requests; when it is lost they are cancelled, and their permits come
  back like all others, when the loop reports that they hold nothing.
- `_relay`: cancels by name that are under way to the API processes that can carry them out.

A connection is served once it has said that it speaks our version of the protocol. What cannot be matched, or comes a
second time, is counted and otherwise ignored, so that a request never means more than a few orders to the loop.

The loop's thread calls `publish` alone; what it tells is handed to `deliver` by this thread.
"""

import logging
import queue
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from itertools import count
from typing import TYPE_CHECKING

import anyio
import msgspec

from tenure.core.admission import Gate, GateLimits, Permit
from tenure.core.fetches import Fetch
from tenure.core.handovers import ticket_of
from tenure.core.ledger import LedgerError
from tenure.core.report import Output
from tenure.engine import translation
from tenure.engine.cancel_relay import CancelRelay
from tenure.engine.ledger_report import engine_ledger
from tenure.engine.orders import Add, Cancel, Ending, EngineSnapshot, Finish, Order, Resume, ShowHolders, Stall
from tenure.errors import CallerError, Refusal
from tenure.outcomes import Outcome
from tenure.process.reports import HEARTBEAT_INTERVAL
from tenure.wire import messages as wire
from tenure.wire.conversation import converse
from tenure.wire.framing import Channel, PeerGone
from tenure.wire.outbox import Outbox, OutboxFull
from tenure.wire.sockets import SocketStream

if TYPE_CHECKING:
    from tenure.engine.kv_service import KVService  # an engine without peers does without it

logger = logging.getLogger("tenure.engine")

_OTHER_VERSION = f"this engine speaks version {wire.PROTOCOL_VERSION} of the protocol alone"


class _Open:
    """An admitted request: its permit, where its outputs go, and what the loop has been told about its end."""

    __slots__ = ("cancelled", "claims", "connection", "finished", "number", "permit", "stalled", "submit")

    def __init__(
        self, number: int, permit: Permit, connection: "_Connection", submit: wire.Submit, claims: Sequence[int]
    ) -> None:
        self.number = number
        self.permit = permit
        self.connection = connection
        self.submit = submit
        self.claims = claims
        self.cancelled = False
        self.stalled = False
        self.finished: set[int] = set()


class _Connection:
    """An API process, as long as its socket is open."""

    __slots__ = ("greeted", "number", "outbox", "process", "requests")

    def __init__(self, number: int, outbox: Outbox) -> None:
        self.number = number
        self.outbox = outbox
        self.greeted = False
        self.process = ""
        self.requests: dict[int, _Open] = {}  # by its own numbers


class EngineServer:
    """See the module's docstring. Until `start_serving` is called, every request is refused as unavailable.

    `outbox_bytes`: how much may wait for an API process that does not read, before it is taken for dead.
    """

    def __init__(self, epoch: str, index: int, *, outbox_bytes: int = 256 * 1024 * 1024) -> None:
        self._epoch = epoch
        self._index = index
        self._outbox_bytes = outbox_bytes
        self._card: wire.ModelCard | None = None
        self._gate: Gate | None = None
        self._orders: queue.Queue[Order] | None = None
        self._kv: KVService | None = None
        self._snapshot: EngineSnapshot | None = None
        self._asking: list[tuple[int, int]] = []  # for holders: numbers of connections, and their sequence numbers
        self._open: dict[int, _Open] = {}
        self._connections: dict[int, _Connection] = {}
        self._relay = CancelRelay()
        self._numbers = count(1)
        self._unmatched = 0

    # called by the engine's main, through the event loop

    def start_serving(
        self, card: wire.ModelCard, limits: GateLimits, orders: "queue.Queue[Order]", kv: "KVService | None" = None
    ) -> None:
        """The model is loaded and the loop is about to run. `kv` is for exchange with other engines."""
        self._card, self._gate, self._orders, self._kv = card, Gate(limits), orders, kv
        for connection in self._connections.values():
            if connection.greeted:
                self._send(connection, wire.Ready(card=card, epoch=self._epoch))

    def publish(self, snapshot: EngineSnapshot) -> None:
        """Take the loop's newest snapshot. Called in the loop's thread: one assignment."""
        self._snapshot = snapshot

    def deliver(self, step: int, outputs: list[Output], ended: list[Ending]) -> None:
        """Pass on what the loop told, and take back the permits of requests that are over."""
        by_connection: dict[int, list[wire.ItemOutput]] = {}
        for output in outputs:
            entry = self._open[output.request]
            by_connection.setdefault(entry.connection.number, []).extend(
                translation.item_outputs(entry.submit.request, output, self._offer(entry, output))
            )
        for number, items in by_connection.items():
            for message in translation.step_outputs(step, items):
                self._send(self._connections.get(number), message)
        for ending in ended:
            self._end(ending)

    def _offer(self, entry: _Open, output: Output) -> str:
        """The text of the ticket for what an output hands over; none for most."""
        lease, submit = output.handed_over, entry.submit
        if lease is None or self._kv is None:
            return ""
        prompt = submit.prompts[output.index // submit.n]
        number = ticket_of(lease)
        text = self._kv.offer(entry.number, number, lease.blocks, prompt, submit.cache_salt)
        if entry.cancelled or entry.connection.number not in self._connections:
            self._kv.withdraw(number)
        return text

    def _end(self, ending: Ending) -> None:
        assert self._gate is not None
        entry = self._open.pop(ending.number)
        self._gate.release(entry.permit, time.monotonic())
        if self._kv is not None:
            self._kv.release(entry.claims)
            self._kv.offers.forget(entry.number)
        entry.connection.requests.pop(entry.submit.request)
        self._relay.end(entry.submit.public_id, ending.outcome)
        ended = wire.Ended(
            request=entry.submit.request,
            outcome=ending.outcome,
            message=ending.message,
            queue_seconds=ending.queue_seconds,
        )
        self._send(self._connections.get(entry.connection.number), ended)
        self._answer()

    # connections

    async def serve(self, stream: SocketStream) -> None:
        """Serve one connection until it is lost; then cancel what it held."""
        channel: Channel[wire.ToEngine] = Channel(stream, wire.ToEngine)
        outbox = Outbox(channel, self._outbox_bytes, stream.send_now)
        connection = _Connection(next(self._numbers), outbox)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(channel.aclose)
            stack.callback(self._lose, connection)
            self._connections[connection.number] = connection
            reason = await converse(channel, outbox, lambda message, _: self._handle(connection, message))
            logger.debug("connection %d ended: %s", connection.number, reason)

    def _lose(self, connection: _Connection) -> None:
        del self._connections[connection.number]
        self._relay.lose(connection.number, (entry.submit.public_id for entry in connection.requests.values()))
        self._answer()
        for entry in connection.requests.values():
            if not entry.cancelled:
                self._cancel(entry, Outcome.WORKER_LOST)

    def _handle(self, connection: _Connection, message: wire.ToEngine) -> None:
        match message:
            case wire.Hello():
                self._greet(connection, message)
            case wire.Submit():
                self._submit(connection, message)
            case wire.Cancel(request=number, outcome=outcome):
                self._cancel(connection.requests.get(number), outcome)
            case wire.FinishItem(request=number, index=index):
                self._finish(connection.requests.get(number), index)
            case wire.Stall(request=number):
                self._set_stalled(connection.requests.get(number), stalled=True)
            case wire.Resume(request=number):
                self._set_stalled(connection.requests.get(number), stalled=False)
            case wire.CancelByName():
                self._cancel_by_name(connection, message)
            case wire.CancelledByName():
                self._relay.note_answer(connection.number, message)
                self._answer()
            case wire.ReleaseTickets(tickets=tickets):
                if self._kv is not None:
                    self._kv.turn_back(tickets)
            case wire.AskLedger(sequence=sequence, holders=False):
                self._report(connection, sequence, self._snapshot)
            case wire.AskLedger(sequence=sequence):
                self._ask_holders(connection, sequence)

    def _greet(self, connection: _Connection, hello: wire.Hello) -> None:
        connection.greeted, connection.process = hello.version == wire.PROTOCOL_VERSION, hello.process
        if not connection.greeted:
            logger.error("API process %d: %s", hello.worker, _OTHER_VERSION)
            self._send(connection, wire.Unready(reason=_OTHER_VERSION))
        elif self._card is None:
            self._send(connection, wire.Unready(reason="the model is being loaded"))
        else:
            self._send(connection, wire.Ready(card=self._card, epoch=self._epoch))

    def _submit(self, connection: _Connection, submit: wire.Submit) -> None:
        if submit.request in connection.requests:
            raise PeerGone(f"request {submit.request} was submitted twice")
        number, claims = next(self._numbers), self._claims_of(submit)
        if isinstance(claims, Refusal):
            self._send(connection, translation.refused(submit.request, claims))
            return
        answer = self._ask(connection, number, submit)
        if isinstance(answer, Refusal):
            if self._kv is not None:
                self._kv.release(claims)
            self._send(connection, translation.refused(submit.request, answer))
            return
        self._open[number] = connection.requests[submit.request] = _Open(number, answer, connection, submit, claims)
        self._send(connection, wire.Admitted(request=submit.request))  # before a step occupies the cores
        self._order(Add(partial(translation.request, number, submit, claims, time.monotonic())))

    def _claims_of(self, submit: wire.Submit) -> list[int] | Refusal:
        """Claim the tickets of a request, before anything else is looked at."""
        if not submit.tickets:
            return []
        if self._kv is None:
            return Refusal(Outcome.INVALID, "invalid_request", "this engine takes over no prompts from others")
        claims: list[int] = []
        try:
            for text, prompt in zip(submit.tickets, submit.prompts, strict=True):
                claims.append(self._kv.claim(text, prompt, submit.cache_salt) if text else 0)
        except (CallerError, ValueError) as error:
            self._kv.release(claims)
            return Refusal(Outcome.INVALID, "invalid_request", f"`kv_transfer_params.ticket`: {error}")
        return claims

    def _ask(self, connection: _Connection, number: int, submit: wire.Submit) -> Permit | Refusal:
        if not connection.greeted:
            return Refusal(Outcome.UNAVAILABLE, "engine_unavailable", _OTHER_VERSION)
        if self._gate is None:
            return Refusal(Outcome.UNAVAILABLE, "engine_unavailable", "the model is being loaded; try again shortly")
        pooled = submit.pooling is not None
        answer = self._gate.ask(submit.prompts, submit.n, pooled=pooled, now=time.monotonic())
        if submit.handover and isinstance(answer, Permit) and not self._promise(number, submit):
            self._gate.release(answer, time.monotonic())
            message = "too many prompts wait to be taken over by other engines; try again later"
            return Refusal(Outcome.QUEUE_FULL, "queue_full", message, 1.0)
        return answer

    def _promise(self, number: int, submit: wire.Submit) -> bool:
        assert self._card is not None
        blocks = sum(-(-length // self._card.block_size) for length in submit.prompts.lengths())
        return self._kv is not None and self._kv.offers.promise(number, blocks * submit.n)

    def fetch(self, fetches: Sequence[Fetch]) -> None:
        """The loop begins to fetch these."""
        assert self._kv is not None
        self._kv.fetch(fetches)

    def freed(self, ticket: int) -> None:
        """The loop has let go of the blocks of a ticket."""
        assert self._kv is not None
        self._kv.freed(ticket)

    def _cancel(self, entry: _Open | None, outcome: Outcome) -> None:
        if entry is None or entry.cancelled:
            self._unmatched += 1  # it ended while the message was on its way
            return
        entry.cancelled = True
        self._order(Cancel(entry.number, outcome))

    def _finish(self, entry: _Open | None, index: int) -> None:
        if entry is None or entry.cancelled or index in entry.finished or not 0 <= index < entry.permit.items:
            self._unmatched += 1
            return
        entry.finished.add(index)
        self._order(Finish(entry.number, index))

    def _set_stalled(self, entry: _Open | None, *, stalled: bool) -> None:
        if entry is None or entry.cancelled or entry.stalled is stalled:
            self._unmatched += 1
            return
        assert self._orders is not None
        if self._orders.qsize() * 2 > self._orders.maxsize > 0:  # the other half is for orders that are bounded
            raise PeerGone("it stalls and resumes without an end")
        entry.stalled = stalled
        self._order((Stall if stalled else Resume)(entry.number))

    def _cancel_by_name(self, connection: _Connection, message: wire.CancelByName) -> None:
        others = (other for other in self._connections.values() if other.greeted and other is not connection)
        processes = {other.process: other.number for other in others}
        questions = self._relay.ask(next(self._numbers), connection.number, message, processes)
        for number, question in questions.items():
            self._send(self._connections[number], question)
        self._answer()

    def _answer(self) -> None:
        """Answer the cancels by name that are done."""
        for requester, answer in self._relay.answers():
            self._send(self._connections.get(requester), answer)

    def _ask_holders(self, connection: _Connection, sequence: int) -> None:
        """The loop alone knows who holds what, and tells it when a step is planned: once for all who have asked."""
        if self._orders is not None:
            if not self._asking:
                self._order(ShowHolders())
            self._asking.append((connection.number, sequence))

    def show(self, snapshot: EngineSnapshot) -> None:
        """Answer those who have asked for holders."""
        asking, self._asking = self._asking, []
        for number, sequence in asking:
            self._report(self._connections.get(number), sequence, snapshot)

    def _report(self, connection: _Connection | None, sequence: int, snapshot: EngineSnapshot | None) -> None:
        if self._card is None or self._gate is None or snapshot is None:
            return  # there is no ledger yet; who asks has a deadline
        ledger = engine_ledger(self._card, self._index, self._epoch, self._gate.snapshot(), snapshot, self._unmatched)
        try:
            self._gate.audit()
        except LedgerError:
            logger.exception("the gate does not add up")
            ledger = msgspec.structs.replace(ledger, conserved=False)
        self._send(connection, wire.LedgerReply(sequence=sequence, ledger=ledger))

    def _order(self, order: Order) -> None:
        assert self._orders is not None
        # Cannot be full: the gate bounds the requests; each means an `Add`, a `Cancel` at most, a `Finish` an item, and
        # a few `Stall`s and `Resume`s between two steps; of `ShowHolders` there is one at a time.
        self._orders.put_nowait(order)

    def _send(self, connection: _Connection | None, message: wire.FromEngine) -> None:
        if connection is None:
            return  # lost while the message was on its way
        try:
            connection.outbox.put(message)
        except OutboxFull as error:
            logger.warning("connection %d: %s", connection.number, error)

    async def heartbeat(self) -> None:
        """Tell every connection once a second how much is open."""
        while True:
            held = self._gate.snapshot().tokens if self._gate is not None else 0
            for connection in self._connections.values():
                self._send(connection, wire.Heartbeat(outstanding_tokens=held))
            await anyio.sleep(HEARTBEAT_INTERVAL)
