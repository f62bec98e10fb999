"""Long computations leave the event loop, so that they do not stall what others wait for.

Few of them run at a time: threads share one interpreter, so that many would slow the event loop down to their own
pace, and each holds its input many times over. What waits for its turn is cancelled at once; what runs should call
`stop_if_cancelled` now and then.
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
    """In a worker thread whose work nobody waits for any more: raise what ends it. Elsewhere nothing happens."""
    with suppress(anyio.NoEventLoopError):
        anyio.from_thread.check_cancelled()
