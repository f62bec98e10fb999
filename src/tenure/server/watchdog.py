"""Judges whether a child process goes on, and is the only one that does.

A child reports once a second. When it is silent, or its step does not end, Linux is asked what its threads do. On a
busy machine a child is late through no fault of its own, so time in which it waits for a core or for the disk is not
counted. Counted is time in which it ran, slept or was stopped. It is counted by looks: when the whole machine has stood
still, that is one look. Nobody has to be told of the verdict: a child that is given up is killed, and those who were
connected to it see their sockets closed.
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
    """What Linux says of a process."""

    runnable: bool
    """A thread of it runs, or waits for a core or the disk."""
    seconds: float
    """Processor time that its main thread has used."""


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
    """Watches over one life of a child; a limit of 0 is none.

    `silence`: seconds without a report, asleep or stopped, after which it is dead. `work`: seconds of processor time,
    or asleep between reports, that its main thread may take for a step (an API process: for a turn of its event loop).
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
        """Take a report of the child."""
        self._reported = True
        if isinstance(report, Alive):
            self._went_on |= not report.busy or report.step != self._step
            self._step = report.step

    def check(self, pid: int) -> str:
        """Why the child is to be taken for dead; empty while it is not. To be called every `CHECK_INTERVAL`."""
        reported, went_on = self._reported, self._went_on
        self._reported = self._went_on = False
        if went_on:
            self._silent, self._worked, self._seconds = 0.0, 0.0, None
            return ""
        try:
            now = self._process_state(pid)
        except OSError:  # for want of a descriptor; or it is gone, which has other signs
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
