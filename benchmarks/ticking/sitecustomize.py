"""Has the API processes of a server tell how long they are held up; see `benchmarks.body_pauses`, which reads it.

A thread and a task of the event loop tick; for each the longest time beyond its tick is noted. Neither the time in
which it waited for a core counts, nor that in which the process, or the event loop's thread, did not compute.
"""

import mmap
import os
import struct
import sys
import threading
import time
from collections.abc import Callable

import uvloop

from tenure.process.system import request_short_time_slices

TICK = 0.0005
PAUSES = struct.Struct("dd")


class Ticks:
    """The longest pause so far, in seconds, at a place in memory that others read and reset."""

    def __init__(self, memory: mmap.mmap, place: int, clock: Callable[[], float]) -> None:
        self._memory = memory
        self._place = 8 * place
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        self._statistics = open(path, "rb", buffering=0)  # noqa: SIM115 -- for as long as the process lives
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        self._began, self._waited, self._computed = time.perf_counter(), self._wait(), self._clock()

    def _wait(self) -> float:
        """For how long this thread has waited for a core."""
        self._statistics.seek(0)
        return int(self._statistics.read().split()[1]) / 1e9

    def end(self) -> None:
        late = time.perf_counter() - self._began - TICK - (self._wait() - self._waited)
        pause = min(late, self._clock() - self._computed)
        if pause > struct.unpack_from("d", self._memory, self._place)[0]:
            struct.pack_into("d", self._memory, self._place, pause)
        self.begin()


def tick_in_thread(memory: mmap.mmap) -> None:
    request_short_time_slices()
    ticks = Ticks(memory, 0, time.process_time)
    while True:
        time.sleep(TICK)
        ticks.end()


def watch(path: str) -> None:
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), PAUSES.size)
    new_event_loop = uvloop.new_event_loop

    def ticking_event_loop() -> uvloop.Loop:
        loop, ticks = new_event_loop(), Ticks(memory, 1, time.thread_time)

        def tick() -> None:
            ticks.end()
            loop.call_later(TICK, tick)

        loop.call_soon(ticks.begin)
        loop.call_later(TICK, tick)
        threading.Thread(target=tick_in_thread, args=(memory,), daemon=True).start()
        return loop

    uvloop.new_event_loop = ticking_event_loop


if os.environ.get("TENURE_PAUSES") and "tenure.api.main" in sys.orig_argv:
    watch(os.environ["TENURE_PAUSES"])
