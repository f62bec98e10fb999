"""`tenure serve`: owns the listening socket, the shared counters and every process of one server.

    starting --all models ready--> serving --SIGTERM, SIGINT, SIGHUP--> draining --> ended (code 0)
    starting --a child reports that it cannot work--> ended (code 1)
    serving --a child dies--> it is started again, or the server ends (code 1)

A second signal ends the server at once (code 1: what was open is cut off). Everything is owned by the exit stack of
`run`: whatever the way out, no child, socket or directory is left.

There are `workers` API processes, which accept on the same listening sockets, and `replicas` engines of each model,
each with a socket of its own. Any API process speaks to any engine.
"""

import logging
import os
import secrets
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, closing
from functools import partial

import anyio
import msgspec

from tenure.config import ApiConfig, ServeConfig
from tenure.observe.counters import CounterSchema, SharedCounters
from tenure.observe.logs import announce
from tenure.server.addresses import address_of, listening, socket_folder
from tenure.server.child_monitor import ChildMonitor, ServerEnded
from tenure.server.children import END_TIMEOUT, ChildSpec, reap_adopted
from tenure.server.readiness import Readiness
from tenure.wire.messages import ModelCard

logger = logging.getLogger("tenure.supervisor")

_DRAIN_MARGIN = 10.0
STOP_MARGIN = 2 * _DRAIN_MARGIN + END_TIMEOUT
"""Seconds on top of `--shutdown-timeout` within which the last process has ended, whatever it does."""

_ENGINE_ENVIRONMENT = {
    "GOMP_SPINCOUNT": "8000",
    "LRU_CACHE_CAPACITY": "128",
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(512 * 2**20),
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
}
"""Read by libraries when they are loaded, hence no flags of the engine's.

How long a thread spins for its next piece of work: the default of OpenMP is for machines that do nothing else; on a
busy one it makes steps many times slower. How many compiled products oneDNN and PyTorch's layer over it each keep:
there is one for each shape of weights and each number of rows in a step, and the default of 1024 takes hundreds of
MiB. What glibc's allocator keeps for the next step, at most 512 MiB: by default it gives the memory of a large step's
intermediate results back each time, and getting it anew took up to a twelfth of the step. (More than 32 MiB for the
first of its two limits would be refused by older versions.)"""

Announce = Callable[[str, Sequence[ModelCard]], None]


class Supervisor:
    """See the module's docstring. `announce` is called with address and the engines' cards once all are ready."""

    def __init__(self, config: ServeConfig, announce: Announce) -> None:
        self._config = config
        self._announce = announce
        self._cut_short = False
        self._cut_off = 0

    async def run(self) -> int:
        """Serve until told to stop; returns the exit code. Raises ResourceError when the address cannot be had."""
        code = 0
        try:
            async with AsyncExitStack() as stack:
                await self._run(stack)
        except* ServerEnded as group:
            announce(str(_first(group)), self._config.api.report.log_format)
            code = 1
        return code

    async def _run(self, stack: AsyncExitStack) -> None:
        listeners = stack.enter_context(listening(self._config.host, self._config.port))
        address = address_of(listeners[0], "http" if self._config.api.tls is None else "https")
        schema = CounterSchema(workers=self._config.api.workers, models=self._config.api.model_names)
        counters = stack.enter_context(closing(SharedCounters.create(schema)))

        def complete(cards: Sequence[ModelCard]) -> None:
            counters.note_ready()
            self._announce(address, cards)

        readiness = Readiness(len(self._config.engines), self._config.api.workers, complete)
        folder = stack.enter_context(socket_folder())
        signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        engines, sockets = self._engines(stack, folder, readiness)
        workers = self._workers(listeners, counters, sockets, readiness)
        group = await stack.enter_async_context(anyio.create_task_group())
        for monitor in (*engines, *workers):
            group.start_soon(monitor.keep)
        group.start_soon(reap_adopted)
        await anext(aiter(signals))
        await self._stop(signals, workers, engines)
        group.cancel_scope.cancel()

    def _engines(
        self, stack: AsyncExitStack, folder: str, readiness: Readiness
    ) -> tuple[list[ChildMonitor], tuple[tuple[str, ...], ...]]:
        """The monitors, and the socket paths of each model's engines. The supervisor's sockets outlive an engine."""
        monitors: list[ChildMonitor] = []
        paths: dict[str, list[str]] = {name: [] for name in self._config.api.model_names}
        for number, config in enumerate(self._config.engines):
            path = os.path.join(folder, f"engine-{number}.sock")
            engine_listener = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            engine_listener.bind(path)
            engine_listener.listen()
            spec = ChildSpec(
                name=config.title,
                module="tenure.engine.main",
                config=config,
                descriptors=(engine_listener.fileno(),),
                on_report=partial(readiness.note_report, number),
                environment=_ENGINE_ENVIRONMENT,
            )
            restart = self._config.on_engine_death == "restart"
            silence, work = self._config.engine_heartbeat_timeout, self._config.engine_step_timeout
            monitors.append(ChildMonitor(spec, restart=restart, silence=silence, work=work))
            paths[config.model.served_names[0]].append(path)
        return monitors, tuple(tuple(found) for found in paths.values())

    def _workers(
        self,
        listeners: Sequence[socket.socket],
        counters: SharedCounters,
        sockets: tuple[tuple[str, ...], ...],
        readiness: Readiness,
    ) -> list[ChildMonitor]:
        common = msgspec.structs.replace(
            self._config.api,
            engine_sockets=sockets,
            epoch=secrets.token_hex(8),
            started_at=time.monotonic(),
            created=int(time.time()),
        )
        monitors = []
        for number in range(common.workers):
            config = msgspec.structs.replace(common, worker=number)
            spec = ChildSpec(
                name=config.title,
                module="tenure.api.main",
                config=config,
                descriptors=(counters.descriptor, *(listener.fileno() for listener in listeners)),
                on_report=partial(readiness.note_report, number),
            )
            close, limit = partial(self._close_worker, counters, readiness, config), self._config.api_heartbeat_timeout
            monitors.append(ChildMonitor(spec, restart=True, silence=limit, work=limit, after_death=close))
        return monitors

    def _close_worker(self, counters: SharedCounters, readiness: Readiness, worker: ApiConfig) -> None:
        """Count the open requests of an API process that has ended as `worker_lost`."""
        readiness.left(worker.worker)
        lost = counters.close_worker(worker.worker)
        self._cut_off += lost
        if lost and not self._cut_short:
            logger.error("%s: %d open requests ended as worker_lost", worker.title, lost)

    async def _stop(
        self, signals: AsyncIterator[signal.Signals], workers: Sequence[ChildMonitor], engines: Sequence[ChildMonitor]
    ) -> None:
        """Let the API processes drain, then end the engines. A second signal raises ServerEnded."""
        announce("stopping; a second signal ends at once", self._config.api.report.log_format)
        async with anyio.create_task_group() as group:
            group.start_soon(self._end_on_signal, signals, workers, engines)
            for worker in workers:
                worker.drain()
            await _wait_ended(workers, self._config.api.shutdown_timeout + _DRAIN_MARGIN)
            for engine in engines:
                engine.stop()
            await _wait_ended(engines, _DRAIN_MARGIN)
            group.cancel_scope.cancel()

    async def _end_on_signal(
        self, signals: AsyncIterator[signal.Signals], workers: Sequence[ChildMonitor], engines: Sequence[ChildMonitor]
    ) -> None:
        await anext(signals)
        self._cut_short, self._cut_off = True, 0
        for monitor in (*workers, *engines):
            monitor.kill()
        await _wait_ended(workers, _DRAIN_MARGIN)
        raise ServerEnded(f"ended at once by a second signal; open requests that were cut off: {self._cut_off}")


async def _wait_ended(monitors: Sequence[ChildMonitor], timeout: float) -> None:
    with anyio.move_on_after(timeout):
        for monitor in monitors:
            await monitor.ended.wait()


def _first(group: BaseExceptionGroup[ServerEnded]) -> ServerEnded:
    inner = group.exceptions[0]
    return inner if isinstance(inner, ServerEnded) else _first(inner)
