"""Keeps one child of the supervisor running: restarts it after its process has ended, as long as policy allows.

A process without progress is killed, and restarted like any other. One that could not be started, because memory or
descriptors were lacking, counts as ended, too.
"""

import logging
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import anyio
from anyio.abc import Process

from tenure.errors import ResourceError
from tenure.process.reports import Alive, AnyReport, Failed
from tenure.server import watchdog
from tenure.server.children import ChildSpec, running, signal_child

logger = logging.getLogger("tenure.supervisor")

_DEATHS = 3
_DEATHS_WITHIN = 300.0
_BACK_OFF = 0.25


class ServerEnded(Exception):
    """The whole server is to end, for the reason that the message says."""


class ChildMonitor:
    """Owns one child. `ended` is set once it has ended and will not be started again.

    `after_death` is called after each end of its process. `silence` and `work` are the limits of a `Watchdog`.
    """

    def __init__(
        self,
        spec: ChildSpec,
        *,
        restart: bool,
        silence: float = 0.0,
        work: float = 0.0,
        after_death: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ended = anyio.Event()
        self._scope = anyio.CancelScope()
        self._spec = replace(spec, on_report=self._on_report)
        self._pass_on = spec.on_report
        self._restart = restart
        self._new_watchdog = partial(watchdog.Watchdog, silence, work)
        self._watchdog = self._new_watchdog()
        self._after_death = after_death
        self._clock = clock
        self._process: Process | None = None
        self._failed: Failed | None = None
        self._stopping = False
        self._deaths: deque[float] = deque(maxlen=_DEATHS)

    def drain(self) -> None:
        """Ask the child, by SIGTERM, to end when it has finished its work; it is not started again."""
        self._stopping = True
        signal_child(self._process, signal.SIGTERM)

    def stop(self) -> None:
        """End the child now; it is not started again."""
        self._stopping = True
        self._scope.cancel()

    def kill(self) -> None:
        """Kill the child; it is not started again."""
        self.stop()
        signal_child(self._process, signal.SIGKILL)

    async def keep(self) -> None:
        """Run the child until `stop`. Raises ServerEnded when it cannot be kept alive."""
        try:
            with self._scope:
                while not self._stopping:
                    await self._run_once()
        finally:
            self.ended.set()

    async def _run_once(self) -> None:
        self._watchdog = self._new_watchdog()
        try:
            async with running(self._spec) as process:
                self._process = process
                if self._stopping:  # told to drain while it was being started
                    signal_child(process, signal.SIGTERM)
                async with anyio.create_task_group() as group:
                    group.start_soon(self._watch, process)
                    code = await process.wait()
                    group.cancel_scope.cancel()
            end = f"the {self._spec.name} died ({_describe(code)})"
        except ResourceError as error:
            end = str(error)
        finally:
            self._process = None
            self._after_death()
        if not self._stopping:
            await self._back_off(end)

    async def _watch(self, process: Process) -> None:
        reason = ""
        while not reason:
            await anyio.sleep(watchdog.CHECK_INTERVAL)
            reason = self._watchdog.check(process.pid)
        logger.error("the %s is killed: %s", self._spec.name, reason)
        signal_child(process, signal.SIGKILL)

    def _on_report(self, report: AnyReport) -> None:
        self._watchdog.note_report(report)
        if isinstance(report, Failed):
            self._failed = report
        if not isinstance(report, Alive):
            self._pass_on(report)

    async def _back_off(self, end: str) -> None:
        """Wait before the next start; raises ServerEnded when it must not be restarted. `end`: how it has ended."""
        if self._failed is not None:
            raise ServerEnded(self._failed.message)
        self._deaths.append(self._clock())
        often = len(self._deaths) == _DEATHS and self._deaths[-1] - self._deaths[0] < _DEATHS_WITHIN
        if often or not self._restart:
            raise ServerEnded(f"{end}; the server ends")
        logger.error("%s; it is started again", end)
        await anyio.sleep(_BACK_OFF * 2 ** len(self._deaths))


def _describe(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
