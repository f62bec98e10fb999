"""What the I/O thread sees of the loop: a step that runs, rest, and a loop that hangs between two steps."""

import queue

from tenure.engine.loop_progress import LoopProgress
from tenure.engine.orders import Cancel, Order, Progress
from tenure.outcomes import Outcome

ORDER = Cancel(1, Outcome.ABORTED)


class Loop:
    """What a pulse looks at."""

    def __init__(self) -> None:
        self.now = 100.0
        self.progress = Progress(0, None)
        self.orders: queue.Queue[Order] = queue.Queue()
        self.pulse = LoopProgress(lambda: self.progress, self.orders, lambda: self.now)

    def after(self, seconds: float) -> Progress:
        self.now += seconds
        return self.pulse()


def test_steps_and_rest_are_told_as_they_are() -> None:
    loop = Loop()
    assert loop.after(1) == Progress(0, None)
    loop.progress = Progress(1, 100.5)
    loop.orders.put(ORDER)
    assert loop.after(50) == Progress(1, 100.5)
    loop.progress = Progress(1, None)
    loop.orders.get()
    assert loop.after(1) == Progress(1, None)


def test_an_order_that_nobody_takes_is_as_old_as_its_first_sight() -> None:
    loop = Loop()
    loop.progress = Progress(7, None)
    loop.orders.put(ORDER)
    assert loop.after(1) == Progress(7, 101.0)
    assert loop.after(60) == Progress(7, 101.0)
    loop.orders.get()
    assert loop.after(1) == Progress(7, None)
    loop.orders.put(ORDER)
    assert loop.after(1) == Progress(7, 163.0)


def test_a_busy_loop_is_not_late() -> None:
    """Orders that are there at each look are others each time, if steps have run between."""
    loop = Loop()
    loop.orders.put(ORDER)
    for step in range(1, 5):
        loop.progress = Progress(step, None)
        assert loop.after(1) == Progress(step, loop.now)
    loop.progress = Progress(5, loop.now)
    assert loop.after(1).since == loop.now - 1
    loop.progress = Progress(5, None)
    assert loop.after(1).since == loop.now
