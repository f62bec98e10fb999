"""Decides whether a child process makes progress; nothing else in the server does.

A child reports once a second. When it is silent, or its step does not end, the state of its threads is read from
/proc. Time in which it waits for a core or the disk is not counted, since on a busy machine that is not its fault; time
in which it runs, sleeps or is stopped is. Time is counted in checks, so a pause of the whole machine counts as one. A
child that is given up is killed; its peers notice by their closed sockets.
"""

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tenure.process.reports import Alive, AnyReport

CHECK_INTERVAL = 0.5
"""Seconds between two looks."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The state of a process, from /proc."""

    runnable: bool
    """At least one of its threads runs, or waits for a core or the disk."""
    seconds: float
    """Processor time of its main thread."""


def process_state(pid: int) -> ProcessState:
    """Read the states of a process's threads. Raises OSError, also when it is gone."""
    runnable, seconds = False, 0.0
    for thread in os.listdir(f"/proc/{pid}/task"):
        with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            state, *numbers = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
            runnable |= state in "RD"
            if thread == str(pid):
                seconds = (int(numbers[10]) + int(numbers[11])) / _TICKS  # utime, stime
    return ProcessState(runnable, seconds)


class Watchdog:
    """Watches one process of a child, from start to end. A limit of 0 means no limit.

    `silence`: seconds without a report, asleep or stopped, after which it counts as dead. `work`: seconds of processor
    time, or asleep between reports, for one step (in an API process: one cycle of the event loop).
    """

    def __init__(self, silence: float, work: float, state_of: Callable[[int], ProcessState] = process_state) -> None:
        self._limits = silence, work
        self._process_state = state_of
        self._reported = self._went_on = False
        self._step = 0
        self._silent = 0.0
        self._worked = float("-inf")  # until its first report it may work as long as it takes
        self._seconds: float | None = None

    def note_report(self, report: AnyReport) -> None:
        """Note that the child has sent a report."""
        self._reported = True
        if isinstance(report, Alive):
            self._went_on |= not report.busy or report.step != self._step
            self._step = report.step

    def check(self, pid: int) -> str:
        """The reason why the child counts as dead; empty while it does not. To be called every `CHECK_INTERVAL`."""
        reported, went_on = self._reported, self._went_on
        self._reported = self._went_on = False
        if went_on:
            self._silent, self._worked, self._seconds = 0.0, 0.0, None
            return ""
        try:
            now = self._process_state(pid)
        except OSError:  # no descriptor is left, or the process is gone, which is noticed elsewhere
            return ""
        ran = 0.0 if self._seconds is None else now.seconds - self._seconds
        asleep = 0.0 if now.runnable or ran else CHECK_INTERVAL
        self._seconds = now.seconds
        self._worked += ran
        if reported:
            self._silent = 0.0
            self._worked += asleep
        else:
            self._silent += asleep
        return self._verdict()

    def _verdict(self) -> str:
        silence, work = self._limits
        if 0 < silence <= self._silent:
            return f"it has given no sign of life for {silence:g} s"
        if 0 < work <= self._worked:
            return f"it has not gone on for {work:g} s, in which it had not to wait for a core"
        return ""
