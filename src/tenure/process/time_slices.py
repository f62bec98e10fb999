"""Short turns on a core, for threads that answer others and compute little.

Where threads wait for a core, Linux (since 6.12) prefers the one whose turn would end first. A thread that asks for
short turns gets them sooner when it wakes, and in the long run no more of the core than it would have had.
"""

import ctypes
import os
import platform
import struct

_SET_ATTRIBUTES = {"x86_64": 314, "aarch64": 274}
"""The number of the system call `sched_setattr`, for which Python has no name."""
_RESET_ON_FORK = 1
"""Threads that this one starts begin with turns of the usual length, and no priority above the usual one."""


_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""`struct sched_attr` of Linux, version 0: size, policy, flags, nice, priority; then, in nanoseconds, the length of a
turn, the deadline and the period."""


def request_short_time_slices(seconds: float = 1e-4) -> bool:
    """Ask for turns of so many seconds for the calling thread; whether the kernel took the request.

    An older one takes it, without effect.
    The thread's policy and priority stay as they are: where the policy is not the usual one, nothing is asked.
    """
    number = _SET_ATTRIBUTES.get(platform.machine())
    if platform.system() != "Linux" or number is None:
        return False
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK != os.SCHED_OTHER:
        return False
    nice, length = os.getpriority(os.PRIO_PROCESS, 0), int(seconds * 1e9)
    attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, _RESET_ON_FORK, nice, 0, length, 0, 0)
    return bool(ctypes.CDLL(None).syscall(number, 0, attributes, 0) == 0)
