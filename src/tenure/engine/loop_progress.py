"""How the engine loop gets on, as its I/O thread sees it."""

import queue
import time
from collections.abc import Callable

from tenure.engine.orders import Order, Progress


class LoopProgress:
    """Called once in a while; tells what `progress` tells, and sees a loop that hangs between two steps as well.

    Such a loop runs no step and takes no order: what waits for it then, look after look, is as old as the first look.
    """

    def __init__(
        self,
        progress: Callable[[], Progress],
        orders: "queue.Queue[Order]",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._progress = progress
        self._orders = orders
        self._clock = clock
        self._untaken: Progress | None = None

    def __call__(self) -> Progress:
        progress = self._progress()
        if progress.since is not None or self._orders.empty():
            self._untaken = None
            return progress
        if self._untaken is None or self._untaken.step != progress.step:
            self._untaken = Progress(progress.step, self._clock())
        return self._untaken
