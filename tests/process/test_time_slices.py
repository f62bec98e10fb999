"""A thread gets the turns it asked for, and nobody else does."""

import os
import re
import threading
from pathlib import Path

import pytest

from tenure.process.system import request_short_time_slices


def turn() -> int | None:
    """Of the calling thread, in nanoseconds; None where Linux does not tell."""
    try:
        text = Path(f"/proc/self/task/{threading.get_native_id()}/sched").read_text()
    except OSError:
        return None
    found = re.search(r"^se\.slice\s*:\s*(\d+)$", text, re.MULTILINE)
    return int(found[1]) if found else None


def test_a_thread_takes_the_turns_it_asked_for_last_and_its_neighbours_and_children_do_not() -> None:
    found: dict[str, int | None] = {"before": turn()}
    asked: list[bool] = []

    def note(name: str) -> None:
        found[name] = turn()

    def run() -> None:
        asked.append(request_short_time_slices(1e-3) and request_short_time_slices(2e-4))
        note("own")
        child = threading.Thread(target=note, args=("child",))
        child.start()
        child.join()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if found["before"] is None or not asked[0]:
        pytest.skip("this kernel has no turns to ask for")
    assert found["own"] == 200_000
    assert found["child"] == found["before"] == turn()


def test_the_priority_stays() -> None:
    niceness: list[int] = []

    def run() -> None:
        os.nice(3)  # of this thread alone, on Linux
        request_short_time_slices()
        niceness.append(os.getpriority(os.PRIO_PROCESS, 0))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert niceness == [3 + os.getpriority(os.PRIO_PROCESS, 0)]


def test_a_thread_of_another_policy_is_left_alone() -> None:
    policies: list[tuple[bool, int]] = []

    def run() -> None:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
        policies.append((request_short_time_slices(), os.sched_getscheduler(0)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert policies == [(False, os.SCHED_BATCH)]
