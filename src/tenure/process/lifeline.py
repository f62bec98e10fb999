"""How a child process learns that its parent is gone, whatever the way: by signal and by end-of-file."""

import ctypes
import os
import signal
import sys

import anyio

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when the thread that started it ends; at once if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


async def end_of_file(descriptor: int) -> None:
    """Return when the other end of the pipe `descriptor` is closed; what is written to it meanwhile is dropped."""
    os.set_blocking(descriptor, False)
    while True:
        await anyio.wait_readable(descriptor)
        try:
            if not os.read(descriptor, 4096):
                return
        except BlockingIOError:
            continue
