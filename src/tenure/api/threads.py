"""Long computations leave the event loop, so that they do not stall what others wait for."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import anyio.from_thread
import anyio.to_thread

T = TypeVar("T")


async def in_thread_if_long(work: Callable[[], T], size: int, threshold: int) -> T:
    """Run `work` here, or in a worker thread when its input is so long that the event loop would stall."""
    if size <= threshold:
        return work()
    return await anyio.to_thread.run_sync(work)


def stop_if_cancelled() -> None:
    """In a worker thread whose work nobody waits for any more: raise what ends it. Elsewhere nothing happens."""
    with suppress(anyio.NoEventLoopError):
        anyio.from_thread.check_cancelled()
