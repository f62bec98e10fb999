"""The steps that an runner has launched and not landed yet: their results, oldest first."""

from collections import deque

from tenure.core.plan import StepPlan, StepResult
from tenure.errors import InternalError

MOST_IN_FLIGHT = 2


class StepResults:
    """Owned by an runner."""

    def __init__(self) -> None:
        self._results: deque[StepResult] = deque()

    def check_room(self, plan: StepPlan) -> None:
        """Raises `InternalError` when `plan` would be one step in flight too many."""
        if len(self._results) == MOST_IN_FLIGHT:
            raise InternalError(f"step {plan.number} was launched while {MOST_IN_FLIGHT} others had not landed")

    def add(self, result: StepResult) -> None:
        self._results.append(result)

    def take(self) -> StepResult:
        """The oldest; raises `InternalError` when no step is in flight."""
        if not self._results:
            raise InternalError("no step is in flight")
        return self._results.popleft()
