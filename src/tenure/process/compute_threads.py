"""Worker threads for long computations, so that these do not block the event loop.

Few run at a time: threads share one interpreter, so many would slow down the event loop, and each holds several times
the memory of its input. A computation that waits for a thread is cancelled at once; one that runs should call
`stop_if_cancelled` regularly.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

T = TypeVar("T")

_THREADS = 8


class Workers:
    """The worker threads of an API process."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_THREADS)

    async def run_if_long(self, work: Callable[[], T], size: int, threshold: int) -> T:
        """Run `work` here, or in a worker thread when `size` is so large that the event loop would stall.

        `size`: what is to be read or written, in bytes or characters, roughly.
        """
        if size <= threshold:
            return work()
        return await anyio.to_thread.run_sync(work, limiter=self._threads)


def stop_if_cancelled() -> None:
    """In a worker thread whose caller was cancelled: raise the cancellation. Elsewhere do nothing."""
    with suppress(anyio.NoEventLoopError):
        anyio.from_thread.check_cancelled()
