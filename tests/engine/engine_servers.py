"""An engine server with real sockets to hand-written API processes on one side, and a scripted loop on the other."""

import queue
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.lowlevel
from anyio.abc import TaskGroup

from tenure.core.admission import GateLimits
from tenure.core.limits import Limits
from tenure.core.report import Output
from tenure.core.request import Request
from tenure.core.scheduler import Scheduler
from tenure.engine.engine_server import EngineServer
from tenure.engine.orders import Add, Ending, EngineSnapshot, Order
from tenure.outcomes import FinishReason, Outcome
from tenure.sampling import SamplingParams
from tenure.token_lists import TokenLists
from tenure.wire import messages as wire
from tenure.wire.sockets import SocketStream
from tests.wire.peer import Peer
from tests.wire.samples import CARD

ROOMY = GateLimits(items=1000, tokens=10_000, capacity=100, vocabulary_size=32)


def process_name(number: int) -> str:
    """What the worker that was the `number`th to connect is called, from 1."""
    return f"{number:08x}"


def public_id(worker: int, number: int) -> str:
    """An id that this worker may have made."""
    return f"cmpl-{process_name(worker)}{number:024x}"


def submit(request: int, *prompts: list[int], n: int = 1, label: str = "") -> wire.Submit:
    return wire.Submit(
        request=request,
        public_id=f"cmpl-{request}",
        prompts=TokenLists.of(prompts or [[1, 2, 3]]),
        sampling=SamplingParams(max_tokens=4),
        n=n,
        label=label,
    )


class Worker(Peer):
    """An API process, as the engine sees it."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__(SocketStream(connection), wire.FromEngine)
        self.socket = connection
        self._questions = 0

    async def answers(self, count: int) -> list[wire.Admitted | wire.Refused]:
        found = []
        for _ in range(count):
            message = await self.hear(wire.Message)
            assert isinstance(message, wire.Admitted | wire.Refused), message
            found.append(message)
        return found

    async def ledger(self) -> wire.EngineLedger:
        """Also means that all that was said before has been dealt with, and all answers to it are in."""
        self._questions += 1
        await self.say(wire.AskLedger(sequence=self._questions))
        reply = await self.hear(wire.LedgerReply)
        assert reply.sequence == self._questions
        return reply.ledger


class Board:
    """The engine server, and the loop's end of it."""

    def __init__(self, group: TaskGroup, outbox_bytes: int) -> None:
        self.engine_server = EngineServer("epoch", 3, outbox_bytes=outbox_bytes)
        self.orders: queue.Queue[Order] = queue.Queue(10_000)
        self.requests: dict[str, Request] = {}
        """Those that the loop was told to add, by their public ids, or labels if they have one."""
        self.workers: list[Worker] = []
        self._group = group

    def open(self, limits: GateLimits = ROOMY) -> None:
        self.engine_server.start_serving(CARD, limits, self.orders)
        self.publish()

    def publish(self) -> None:
        self.engine_server.publish(self._snapshot([]))

    def show(self, holders: list[wire.HolderRow]) -> None:
        self.engine_server.show(self._snapshot(holders))

    def _snapshot(self, holders: list[wire.HolderRow]) -> EngineSnapshot:
        scheduler = Scheduler(Limits(max_model_len=64, num_blocks=16, block_size=4, num_slots=4))
        return EngineSnapshot(scheduler.snapshot(), True, holders=holders)

    async def connect(self, version: int | None = wire.PROTOCOL_VERSION, buffer_bytes: int = 0) -> Worker:
        """A worker that has introduced itself, unless `version` is None."""
        ours, theirs = socket.socketpair(socket.AF_UNIX)
        if buffer_bytes:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
        for end in (ours, theirs):
            end.setblocking(False)
        self._group.start_soon(self.engine_server.serve, SocketStream(theirs))
        worker = Worker(ours)
        self.workers.append(worker)
        if version is not None:
            number = len(self.workers)
            await worker.say(wire.Hello(worker=number, version=version, process=process_name(number)))
        return worker

    async def connect_ready(self) -> Worker:
        worker = await self.connect()
        await worker.hear(wire.Ready)
        return worker

    def take_orders(self) -> list[Order]:
        """All orders since the last time."""
        found = []
        while not self.orders.empty():
            order = self.orders.get_nowait()
            found.append(order)
            if isinstance(order, Add):
                request = order.make()
                self.requests[request.spec.label or request.spec.public_id] = request
        return found

    async def wait_order(self) -> Order:
        """The next order, alone."""
        while self.orders.empty():
            await anyio.lowlevel.checkpoint()
        [order] = self.take_orders()
        return order

    def end(self, request: Request, outcome: Outcome = Outcome.OK, message: str = "") -> None:
        """The loop says that a request holds nothing any more."""
        self.engine_server.deliver(7, [], [Ending(request.number, outcome, message, None)])


def output(request: Request, index: int, token: int, reason: FinishReason | None = None) -> Output:
    return Output(request.number, index, [token], None, reason, None, None, 0, None)


@asynccontextmanager
async def board(outbox_bytes: int = 1 << 20) -> AsyncIterator[Board]:
    """An engine server; at the end every connection is closed, and it must have let go of all of them."""
    async with anyio.create_task_group() as group:
        found = Board(group, outbox_bytes)
        try:
            yield found
        finally:
            with anyio.CancelScope(shield=True):
                for worker in found.workers:
                    await worker.hang_up()
            group.cancel_scope.cancel()


@asynccontextmanager
async def admitted(message: wire.Submit) -> AsyncIterator[tuple[Board, Worker]]:
    """One that serves, with one connection, whose request was admitted and handed to the loop."""
    async with board() as rig:
        rig.open()
        worker = await rig.connect_ready()
        await worker.say(message)
        await worker.hear(wire.Admitted)
        rig.take_orders()
        yield rig, worker
