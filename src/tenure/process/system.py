"""What a process sets for itself at the operating system: its death with its parent, its limits, its time slices."""

import ctypes
import os
import platform
import resource
import signal
import struct

import anyio

_PR_SET_PDEATHSIG = 1
_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
"""The number of the system call `sched_setattr`, for which Python has no name."""
_RESET_ON_FORK = 1
"""Threads that this one starts get the default time slice and priority."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr` of Linux, version 0: size, policy, flags, nice, priority; then, in nanoseconds, time slice,
deadline and period."""


def die_with_parent(parent: int) -> None:
    """Make the kernel kill this process when the thread that started it ends; exit at once if that has happened."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


async def end_of_file(descriptor: int) -> None:
    """Return when the other end of the pipe `descriptor` is closed; reads and drops what is written to it."""
    os.set_blocking(descriptor, False)
    while True:
        await anyio.wait_readable(descriptor)
        try:
            if not os.read(descriptor, 4096):
                return
        except BlockingIOError:
            continue


def allow_descriptors(wanted: int) -> int:
    """Raise this process's limit to `wanted`, or as far as it may; returns what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    return max(soft, wanted)


def request_short_time_slices(seconds: float = 1e-4) -> bool:
    """Set the time slice of the calling thread to `seconds`; returns whether the kernel accepted it.

    For threads that answer others and compute little: Linux (since 6.12; older ones accept this without effect) runs
    the waiting thread whose slice would end first, so they wait less for a core, and get no more of it in the long run.
    Policy and priority stay as they are; nothing is set for a thread whose policy is not the default one.
    """
    number = _SET_ATTRIBUTES.get(platform.machine())
    if number is None or os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return False
    nice, length = os.getpriority(os.PRIO_PROCESS, 0), int(seconds * 1e9)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, length, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
