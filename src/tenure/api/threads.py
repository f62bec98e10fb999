"""Long computations leave the event loop, so that they do not stall what others wait for."""

from collections.abc import Callable
from typing import TypeVar

import anyio.to_thread

T = TypeVar("T")


async def in_thread_if_long(work: Callable[[], T], size: int, threshold: int) -> T:
    """Run `work` here, or in a worker thread when its input is so long that the event loop would stall."""
    if size <= threshold:
        return work()
    return await anyio.to_thread.run_sync(work)
