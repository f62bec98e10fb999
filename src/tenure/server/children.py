"""A child process of the supervisor, from its start until it has ended and was waited for.

The child gets its configuration as a line on standard input, its control pipe, which stays open. It reports over a
pipe of its own. Leaving `running` leaves nothing behind: the control pipe is closed, which ends the child, and if that
takes too long it is killed.

No signal is needed to end a child: a service manager may send SIGTERM to every process of the server, and an engine
must go on working for the requests that are being drained.
"""

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import anyio
import msgspec
from anyio.abc import Process

from tenure.config import environment_with
from tenure.errors import ResourceError
from tenure.process.reports import AnyReport, read_reports

END_TIMEOUT = 5.0
_WAITED_FOR_WITHIN = 1.0


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """How to start a child. `descriptors` are inherited, and given as arguments before the report pipe's."""

    name: str
    module: str
    config: msgspec.Struct
    descriptors: tuple[int, ...]
    on_report: Callable[[AnyReport], None]
    environment: Mapping[str, str] = field(default_factory=dict)
    """Set where the supervisor's own environment does not say otherwise."""


@asynccontextmanager
async def running(spec: ChildSpec) -> AsyncIterator[Process]:
    """A started child, which has been sent its configuration. Raises ResourceError when it could not be started."""
    try:
        process, reading = await _start(spec)
    except (OSError, RuntimeError) as error:  # the latter: no thread to wait for its end
        reason = error.strerror if isinstance(error, OSError) else None
        raise ResourceError(f"the {spec.name} could not be started: {reason or error}") from error
    try:
        assert process.stdin is not None
        with suppress(anyio.BrokenResourceError, OSError):  # it has ended already, as its exit code will tell
            await process.stdin.send(msgspec.json.encode(spec.config) + b"\n")
        async with anyio.create_task_group() as group:
            group.start_soon(_read_reports, reading, spec.on_report)
            yield process
            if process.returncode is None:
                group.cancel_scope.cancel()  # else its last reports are still read
    finally:
        with anyio.CancelScope(shield=True):
            await _end(process)
        os.close(reading)


def signal_child(process: Process | None, number: signal.Signals) -> None:
    """Send a signal, unless the child has not been started or has ended already."""
    if process is not None and process.returncode is None:
        process.send_signal(number)


async def _start(spec: ChildSpec) -> tuple[Process, int]:
    """The child, and the end of its report pipe that is to be read."""
    reading, writing = os.pipe()
    try:
        arguments = [str(number) for number in (*spec.descriptors, writing, os.getpid())]
        with anyio.CancelScope(shield=True):  # a start that is cancelled half way would have no owner
            process = await anyio.open_process(
                [sys.executable, "-m", spec.module, *arguments],
                stdin=subprocess.PIPE,
                stdout=None,
                stderr=None,
                pass_fds=(*spec.descriptors, writing),
                env=environment_with(spec.environment),
                start_new_session=True,  # Ctrl-C in a terminal is the supervisor's to answer
            )
    except BaseException:
        os.close(reading)
        raise
    finally:
        os.close(writing)
    return process, reading


async def _read_reports(descriptor: int, on_report: Callable[[AnyReport], None]) -> None:
    os.set_blocking(descriptor, False)
    pending = b""
    while True:
        await anyio.wait_readable(descriptor)
        data = os.read(descriptor, 65536)
        if not data:
            return
        pending += data
        whole, separator, pending = pending.rpartition(b"\n")
        for report in read_reports(whole + separator):
            on_report(report)


async def _end(process: Process) -> None:
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(END_TIMEOUT):
        await process.wait()
    signal_child(process, signal.SIGKILL)
    await process.wait()
    await process.aclose()


async def reap_adopted() -> None:
    """Reap orphans that this process has adopted, as PID 1 of a container does, when they have ended.

    Its own children are session leaders and reaped by asyncio at once; so an ended session leader is reaped here only
    when it is found a second time.
    """
    with anyio.open_signal_receiver(signal.SIGCHLD) as signals:
        async for _ in signals:
            leader = _reap(0)
            while leader:
                await anyio.sleep(_WAITED_FOR_WITHIN)
                leader = _reap(leader)


def _reap(seen: int) -> int:
    """Wait for children that have ended, up to one that leads a session and is not the one `seen` before: return it."""
    with suppress(ChildProcessError, ProcessLookupError):  # there is none, or it has just been waited for
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
            if ended.si_pid != seen and os.getsid(ended.si_pid) == ended.si_pid:
                return ended.si_pid
            os.waitpid(ended.si_pid, 0)
    return 0
