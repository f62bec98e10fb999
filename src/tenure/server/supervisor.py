"""`tenure serve`: owns the listening socket, the shared counters and every process of one server.

    starting --all models ready--> serving --SIGTERM, SIGINT, SIGHUP--> draining --> ended (code 0)
    starting --a child reports that it cannot work--> ended (code 1)
    serving --a child dies--> it is started again, or the server ends (code 1)

A second signal ends the server at once (code 1). Everything is owned by the exit stack of `run`: whatever the way out,
no child, socket or directory is left.
"""

import logging
import os
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, closing, contextmanager
from tempfile import TemporaryDirectory

import anyio
import msgspec

from tenure.api.app import counter_schema
from tenure.config import ServeConfig
from tenure.errors import ResourceError
from tenure.process.counters import SharedCounters
from tenure.process.reports import AnyReport, Loaded, Serving
from tenure.server.children import ChildSpec
from tenure.server.keeper import Keeper, ServerEnded
from tenure.wire.messages import ModelCard

logger = logging.getLogger("tenure.supervisor")

SEND_BUFFER_BYTES = 64 * 1024
"""The kernel would take megabytes for a client that never reads; that is hours of tokens."""
_BACKLOG = 2048
_DRAIN_MARGIN = 10.0

_ENGINE_ENVIRONMENT = {"GOMP_SPINCOUNT": "8000"}
"""How long a thread of the engine spins for its next piece of work. The default is for machines that do nothing else:
on a busy one it makes steps many times slower. Read by OpenMP when it is loaded, hence no flag of the engine's."""

Announce = Callable[[str, Sequence[ModelCard]], None]


class Supervisor:
    """See the module's docstring. `announce` is called with address and models once all are ready."""

    def __init__(self, config: ServeConfig, announce: Announce) -> None:
        self._config = config
        self._announce = announce
        self._cards: dict[str, ModelCard] = {}
        self._serving = False
        self._address = ""

    async def run(self) -> int:
        """Serve until told to stop; returns the exit code. Raises ResourceError when the address cannot be had."""
        code = 0
        try:
            async with AsyncExitStack() as stack:
                await self._run(stack)
        except* ServerEnded as group:
            ended = _first(group)
            print(f"tenure: {ended.message}", file=sys.stderr)
            code = ended.code
        return code

    async def _run(self, stack: AsyncExitStack) -> None:
        listener = stack.enter_context(listening(self._config.host, self._config.port))
        self._address = address_of(listener, "http" if self._config.api.tls is None else "https")
        counters = stack.enter_context(closing(SharedCounters.create(counter_schema(self._config.api.model_names))))
        directory = stack.enter_context(TemporaryDirectory(prefix="tenure-"))
        signals = stack.enter_context(anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
        engines, sockets = self._engines(stack, directory)
        worker = self._worker(listener, counters, sockets)
        group = await stack.enter_async_context(anyio.create_task_group())
        for keeper in (*engines, worker):
            group.start_soon(keeper.keep)
        await anext(aiter(signals))
        await self._stop(signals, worker, engines)
        group.cancel_scope.cancel()

    def _engines(self, stack: AsyncExitStack, directory: str) -> tuple[list[Keeper], tuple[str, ...]]:
        """One for each model. The sockets are the supervisor's, so that they outlive an engine."""
        keepers, paths = [], []
        for number, config in enumerate(self._config.engines):
            path = os.path.join(directory, f"engine-{number}.sock")
            engine_listener = stack.enter_context(closing(socket.socket(socket.AF_UNIX)))
            engine_listener.bind(path)
            engine_listener.listen()
            spec = ChildSpec(
                name=f"engine of {config.model.name}",
                module="tenure.engine.main",
                config=config,
                descriptors=(engine_listener.fileno(),),
                on_report=self._on_report,
                environment=_ENGINE_ENVIRONMENT,
            )
            keepers.append(Keeper(spec, restart=self._config.on_engine_death == "restart"))
            paths.append(path)
        return keepers, tuple(paths)

    def _worker(self, listener: socket.socket, counters: SharedCounters, sockets: tuple[str, ...]) -> Keeper:
        config = msgspec.structs.replace(self._config.api, engine_sockets=sockets, epoch=secrets.token_hex(8))
        spec = ChildSpec(
            name="API process",
            module="tenure.api.main",
            config=config,
            descriptors=(listener.fileno(), counters.descriptor),
            on_report=self._on_report,
        )
        return Keeper(spec, restart=True, after_death=lambda: _bury(counters, config.worker))

    def _on_report(self, report: AnyReport) -> None:
        """The API process may say that every model is ready before the last engine's own words have been read."""
        if isinstance(report, Loaded):
            self._cards[report.card.name] = report.card
        elif isinstance(report, Serving):
            self._serving = True
        names = self._config.api.model_names
        if self._serving and all(name in self._cards for name in names):
            self._serving = False
            self._announce(self._address, [self._cards[name] for name in names])

    async def _stop(self, signals: AsyncIterator[signal.Signals], worker: Keeper, engines: Sequence[Keeper]) -> None:
        """Let the API process drain, then end the engines. A second signal raises ServerEnded."""
        print("tenure: stopping; a second signal ends at once", file=sys.stderr)
        async with anyio.create_task_group() as group:
            group.start_soon(_end_on_signal, signals)
            worker.drain()
            with anyio.move_on_after(self._config.api.shutdown_timeout + _DRAIN_MARGIN):
                await worker.ended.wait()
            for engine in engines:
                engine.stop()
            with anyio.move_on_after(_DRAIN_MARGIN):
                for engine in engines:
                    await engine.ended.wait()
            group.cancel_scope.cancel()


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """The listening socket of the server; raises ResourceError when the address cannot be had."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # the latter for a host that can be no name
        reason = error.strerror if isinstance(error, OSError) else "not the name of a host"
        raise ResourceError(f"cannot listen on {host}:{port}: {reason or error}") from error
    with listener:
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            listener.bind(address)
            listener.listen(_BACKLOG)
        except OSError as error:
            raise ResourceError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        yield listener


def address_of(listener: socket.socket, scheme: str = "http") -> str:
    """The URL at which a listening socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


async def _end_on_signal(signals: AsyncIterator[signal.Signals]) -> None:
    async for _ in signals:
        raise ServerEnded(1, "ended at once by a second signal")


def _bury(counters: SharedCounters, worker: int) -> None:
    lost = counters.bury(worker)
    if lost:
        logger.error("%d open requests ended as worker_lost", lost)


def _first(group: BaseExceptionGroup[ServerEnded]) -> ServerEnded:
    inner = group.exceptions[0]
    return inner if isinstance(inner, ServerEnded) else _first(inner)
