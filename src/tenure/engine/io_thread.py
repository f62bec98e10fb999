"""The engine's I/O thread: an event loop of its own for the engine server, beside the loop in the main thread."""

import asyncio
import logging
import os
import queue
import socket
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio

from tenure.core.admission import GateLimits
from tenure.core.fetches import Fetch
from tenure.core.report import Output
from tenure.engine.engine_server import EngineServer
from tenure.engine.orders import Ending, EngineSnapshot, Order, Progress, Stop
from tenure.process.reports import HEARTBEAT_INTERVAL, Alive
from tenure.process.system import end_of_file, request_short_time_slices
from tenure.wire import sockets
from tenure.wire.messages import ModelCard

if TYPE_CHECKING:
    from tenure.engine.kv_service import KVService  # an engine without peers does without it

logger = logging.getLogger("tenure.engine")

_OUTGOING_LIMIT = 1024
_HAND_OVER_TIMEOUT = 1.0
"""How often a loop that waits for the I/O thread looks whether there still is one."""


class IOThread:
    """Runs `EngineServer` on `listener` until `stop`, or until `control_pipe` reports the supervisor's end.

    The engine's main thread calls `start`, then `start_serving`, then runs the loop, with this object as its
    `Port`; `stop` at the end. What the loop tells is handed over through a bounded queue. `report` is called once a
    second.
    """

    def __init__(
        self, engine_server: EngineServer, listener: socket.socket, control_pipe: int, report: Callable[[Alive], None]
    ) -> None:
        self._engine_server = engine_server
        self._report = report
        self._listener = listener
        self._outgoing: queue.Queue[Callable[[], None]] = queue.Queue(_OUTGOING_LIMIT)
        self._anything_told = anyio.Event()
        self._thread = threading.Thread(target=self._run, args=(control_pipe,), name="tenure-io", daemon=True)
        self._started = threading.Event()
        self._ended = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scope: anyio.CancelScope | None = None
        self._is_serving = anyio.Event()
        self._kv: KVService | None = None
        self._orders: queue.Queue[Order] | None = None
        self._progress: Callable[[], Progress] = lambda: Progress(0, runs=False)

    def start(self) -> None:
        """Start the thread and wait until it accepts connections."""
        self._thread.start()
        self._started.wait()

    def start_serving(
        self,
        card: ModelCard,
        limits: GateLimits,
        orders: "queue.Queue[Order]",
        progress: Callable[[], Progress],
        kv: "KVService | None" = None,
    ) -> None:
        """Let the engine server admit requests; their orders go into `orders`. `kv` serves other engines."""
        self._orders = orders
        self._progress = progress
        self._soon(partial(self._start_serving, card, limits, orders, kv))
        if self._ended.is_set():  # while the model was being loaded
            orders.put(Stop())

    def stop(self) -> bool:
        """End the thread and wait for it; False when it had failed before."""
        failed = self._ended.is_set()
        self._soon(self._end)
        self._thread.join()
        return not failed

    # the loop's port, called in the main thread

    def publish(self, snapshot: EngineSnapshot) -> None:
        self._engine_server.publish(snapshot)

    def show(self, snapshot: EngineSnapshot) -> None:
        self._hand_over(lambda: self._engine_server.show(snapshot))

    def fetch(self, fetches: list[Fetch]) -> None:
        self._hand_over(lambda: self._engine_server.fetch(fetches))

    def freed(self, number: int) -> None:
        self._hand_over(lambda: self._engine_server.freed(number))

    def emit(self, step: int, outputs: list[Output], ended: list[Ending]) -> None:
        self._hand_over(lambda: self._engine_server.deliver(step, outputs, ended))

    def _hand_over(self, delivery: Callable[[], None]) -> None:
        while not self._ended.is_set():
            try:
                self._outgoing.put(delivery, timeout=_HAND_OVER_TIMEOUT)
            except queue.Full:
                continue
            self._soon(lambda: self._anything_told.set())
            return

    def _soon(self, callback: Callable[[], None]) -> None:
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the event loop is closed
            logger.debug("the I/O thread has ended")

    # in the I/O thread

    async def _deliver(self) -> None:
        """Pass on what the loop tells. It is a task of the group, so that a fault in it ends the process."""
        while True:
            await self._anything_told.wait()
            self._anything_told = anyio.Event()
            while not self._outgoing.empty():
                self._outgoing.get_nowait()()

    def _start_serving(
        self, card: ModelCard, limits: GateLimits, orders: "queue.Queue[Order]", kv: "KVService | None"
    ) -> None:
        self._engine_server.start_serving(card, limits, orders, kv)
        self._kv = kv
        self._is_serving.set()

    def _end(self) -> None:
        if self._scope is not None:
            self._scope.cancel()

    def _run(self, control_pipe: int) -> None:
        try:
            anyio.run(self._main, control_pipe, backend_options={"use_uvloop": True})
        except BaseException:
            logger.exception("the I/O thread failed")
        finally:
            self._ended.set()
            self._started.set()
            if self._orders is not None:
                self._orders.put(Stop())

    async def _main(self, control_pipe: int) -> None:
        request_short_time_slices()
        self._loop = asyncio.get_running_loop()
        with self._listener:
            await self._serve(control_pipe)

    async def _serve(self, control_pipe: int) -> None:
        async with anyio.create_task_group() as group:
            self._scope = group.cancel_scope
            group.start_soon(self._serve_peers)
            group.start_soon(sockets.serve, self._listener, self._engine_server.serve)
            group.start_soon(self._engine_server.heartbeat)
            group.start_soon(self._report_alive)
            group.start_soon(self._deliver)
            group.start_soon(_exit_with_supervisor, control_pipe)
            self._started.set()

    async def _serve_peers(self) -> None:
        await self._is_serving.wait()
        if self._kv is not None:
            await self._kv.run()

    async def _report_alive(self) -> None:
        """Orders that the loop does not take are work as well: it may hang between two steps."""
        while True:
            step, runs = self._progress()
            waiting = self._orders is not None and not self._orders.empty()
            self._report(Alive(step=step, busy=runs or waiting))
            await anyio.sleep(HEARTBEAT_INTERVAL)


async def _exit_with_supervisor(control_pipe: int) -> None:
    await end_of_file(control_pipe)
    # Without its supervisor the engine has nobody to work for, and the step that runs need not be waited for.
    os._exit(0)
