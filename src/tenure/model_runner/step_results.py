"""The steps that a runner has launched and not landed yet: computing, waiting for that, or computed, oldest first.

With `overlap` they are computed one after the other in a thread of their own, so that whoever launches them goes on
meanwhile; else in the thread that launches, at once.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from tenure.core.plan import StepPlan, StepResult
from tenure.errors import InternalError

MOST_IN_FLIGHT = 2


class StepResults:
    """Owned by a runner. Not for use by several threads at once."""

    def __init__(self, *, overlap: bool = False) -> None:
        number = torch.get_num_threads()
        self._thread = ThreadPoolExecutor(1, "steps", torch.set_num_threads, (number,)) if overlap else None
        self._results: deque[Callable[[], StepResult]] = deque()

    def check_room(self, plan: StepPlan) -> None:
        """Raises `InternalError` when `plan` would be one step in flight too many."""
        if len(self._results) == MOST_IN_FLIGHT:
            raise InternalError(f"step {plan.number} was launched while {MOST_IN_FLIGHT} others had not landed")

    def launch(self, compute: Callable[[], StepResult]) -> None:
        """Compute one more step. What `compute` raises is raised here, or by `take` if steps overlap."""
        if self._thread is not None:
            self._results.append(self._thread.submit(compute).result)
            return
        result = compute()
        self._results.append(lambda: result)

    def take(self) -> StepResult:
        """The result of the oldest, once it is computed; raises `InternalError` when no step is in flight."""
        if not self._results:
            raise InternalError("no step is in flight")
        return self._results.popleft()()

    def set_threads(self, number: int) -> None:
        """Steps launched from now on use so many threads of torch, which has a number for each thread that computes."""
        if self._thread is not None:
            self._thread.submit(torch.set_num_threads, number)
        else:
            torch.set_num_threads(number)
