"""Processor time that an idle server takes, over all its processes, as a share of one core.

python -m benchmarks.idle
"""

import argparse
import time

import psutil

from benchmarks.servers import tenure


def cpu_seconds() -> float:
    """User and system time of every process below this one."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        times = process.cpu_times()
        total += times.user + times.system
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    with tenure("smollm2", port=8195):
        time.sleep(3.0)  # what start-up left to do
        before, began = cpu_seconds(), time.perf_counter()
        time.sleep(seconds)
        used, elapsed = cpu_seconds() - before, time.perf_counter() - began
    print(f"{used:.3f} s of processor time in {elapsed:.1f} s: {used / elapsed:.2%} of a core")


if __name__ == "__main__":
    main()
