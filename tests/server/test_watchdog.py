"""A process that does not go on is found out; one that waits for a core, or has its reports yet to be read, is not."""

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tenure.process.reports import Alive, AnyReport, Loaded
from tenure.server.watchdog import CHECK_INTERVAL, ProcessState, Watchdog, process_state
from tests.wire.samples import CARD

SILENCE, WORK = 5.0, 30.0
SILENT = "it has given no sign of life for 5 s"
ENDLESS = "it has not gone on for 30 s, in which it had not to wait for a core"
STEP = Alive(step=7, busy=True)


class Child:
    """A child, and the looks that its watchdog has had at it."""

    def __init__(self, silence: float = SILENCE, work: float = WORK) -> None:
        self.looks = 0
        self._dog = Watchdog(silence, work, lambda pid: self._state)
        self._state = ProcessState(runnable=False, seconds=0.0)

    def passes(self, *reports: AnyReport, runs: float = 0.0, runnable: bool | None = None) -> str:
        """The time until the next look passes: what is heard, and how long its main thread runs, in it. The verdict."""
        self.looks += 1
        self._state = ProcessState(bool(runs) if runnable is None else runnable, self._state.seconds + runs)
        for report in reports:
            self._dog.note_report(report)
        return self._dog.check(1)

    def looks_until_verdict(
        self, *reports: AnyReport, runs: float = 0.0, runnable: bool | None = None
    ) -> tuple[float, str]:
        """How many seconds of the same pass until it is given up."""
        begun = self.looks
        while not (verdict := self.passes(*reports, runs=runs, runnable=runnable)):
            assert self.looks - begun < 1000, "it is never given up"
        return (self.looks - begun) * CHECK_INTERVAL, verdict

    def goes_on(self, *reports: AnyReport, runs: float = 0.0, runnable: bool | None = None) -> bool:
        """It is not given up in ten minutes of the same."""
        return not any(self.passes(*reports, runs=runs, runnable=runnable) for _ in range(1200))


@pytest.mark.parametrize("before", [(), (Alive(),), (Loaded(card=CARD), Alive()), (STEP,)])
def test_one_that_is_stopped_or_asleep_and_silent(before: tuple[AnyReport, ...]) -> None:
    """Whatever it did before: also one that has not begun yet, or was in a step."""
    child = Child()
    assert child.passes(*before) == ""
    seconds, verdict = child.looks_until_verdict()
    assert verdict == SILENT
    assert SILENCE - CHECK_INTERVAL <= seconds <= SILENCE


def test_signs_of_life() -> None:
    """Also when each second one is late."""
    child = Child()
    for _ in range(100):
        assert not child.passes(Alive())
        assert not any(child.passes() for _ in range(int(SILENCE / CHECK_INTERVAL) - 1))


def test_one_that_is_starved_says_nothing_and_is_waited_for() -> None:
    """It would run if it could; now and then it does. What it has used counts, not what it has waited."""
    child = Child()
    child.passes(STEP)
    assert child.goes_on(runnable=True)
    assert child.goes_on(STEP, runs=0.01)
    assert child.goes_on(Alive(step=8, busy=True), runnable=True)
    assert child.looks_until_verdict() == (SILENCE, SILENT), "it is stopped after all"


def test_a_step_that_uses_too_much_processor_time() -> None:
    """Though its I/O thread goes on reporting, or is kept from it by the interpreter's lock."""
    for reports in ((STEP,), ()):
        child = Child()
        child.passes(STEP)
        seconds, verdict = child.looks_until_verdict(*reports, runs=0.25)
        assert verdict == ENDLESS
        assert 2 * WORK - 1 <= seconds <= 2 * WORK + 1, "it had half a core"


def test_a_step_that_sleeps() -> None:
    """Nothing keeps it from going on, and it does not."""
    child = Child()
    child.passes(STEP)
    seconds, verdict = child.looks_until_verdict(STEP)
    assert verdict == ENDLESS
    assert WORK - CHECK_INTERVAL <= seconds <= WORK + CHECK_INTERVAL


def test_steps_that_end() -> None:
    child = Child()
    for step in range(100):
        for _ in range(int(WORK / CHECK_INTERVAL) - 1):
            assert not child.passes(Alive(step=step, busy=True), runs=CHECK_INTERVAL)
    assert child.goes_on(Alive(step=100), runs=CHECK_INTERVAL), "it has nothing to do"


def test_one_that_begins_may_work_as_long_as_it_takes() -> None:
    child = Child()
    assert child.goes_on(runs=CHECK_INTERVAL)
    child.passes(Alive())
    assert child.looks_until_verdict(runs=CHECK_INTERVAL)[1] == ENDLESS


def test_limits_of_nought() -> None:
    assert Child(silence=0.0, work=0.0).goes_on()
    assert Child(silence=0.0).looks_until_verdict(STEP)[1] == ENDLESS
    assert Child(work=0.0).looks_until_verdict()[1] == SILENT


@contextmanager
def running(code: str) -> Iterator[int]:
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


def test_a_process_that_is_stopped() -> None:
    """Its threads are, too, whatever they did."""
    spins = "threading.Thread(target=lambda: all(iter(lambda: 1, 0))).start()"
    with running(f"import threading\n{spins}\nprint(flush=True)\nwhile True: pass") as pid:
        while process_state(pid).seconds < 0.05:
            pass
        assert process_state(pid).runnable
        os.kill(pid, signal.SIGSTOP)
        os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
        stopped = process_state(pid)
        assert not stopped.runnable
        assert stopped.seconds >= 0.05


def test_a_process_of_which_one_thread_runs() -> None:
    """The others, the main one among them, wait for it."""
    with running(
        "import threading\nthreading.Thread(target=lambda: [print(flush=True), all(iter(lambda: 1, 0))]).start()"
    ) as pid:
        first = process_state(pid)
        while not (now := process_state(pid)).runnable:
            pass
        assert now.seconds - first.seconds < 0.05


def test_a_process_that_sleeps_and_one_that_is_gone() -> None:
    with running("import time\nprint(flush=True)\ntime.sleep(60)") as pid:
        while process_state(pid).runnable:
            pass
    with pytest.raises(FileNotFoundError):
        process_state(pid)


def test_a_look_that_cannot_be_had_means_nothing() -> None:
    """The supervisor may lack a descriptor."""

    def no_look(pid: int) -> ProcessState:
        raise OSError(errno.EMFILE, "Too many open files")

    dog = Watchdog(SILENCE, WORK, no_look)
    assert not any(dog.check(1) for _ in range(100))
