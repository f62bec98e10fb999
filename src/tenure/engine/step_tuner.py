"""The budget of the next step and its number of threads, both from measurements of earlier steps."""

from tenure.core.budget import StepBudget
from tenure.core.plan import StepPlan
from tenure.engine.estimator import StepCostEstimator
from tenure.engine.threads import ThreadGovernor


class StepTuner:
    """`step_time` in seconds, 0 for no bound; `max_tokens` bounds a step's tokens.

    Without a `governor` the number of threads stays as it is.
    """

    def __init__(
        self, estimator: StepCostEstimator, *, max_tokens: int, step_time: float, governor: ThreadGovernor | None = None
    ) -> None:
        self._estimator = estimator
        self._max_tokens = max_tokens
        self._step_time = step_time
        self._governor = governor

    def budget(self) -> StepBudget:
        """The budget of the next step."""
        return self._estimator.budget(self._max_tokens, self._step_time)

    def prepare(self) -> None:
        """Called before each step: sets the number of threads."""
        if self._governor is not None:
            self._governor.prepare()

    def learn(self, plan: StepPlan, seconds: float) -> None:
        """Called after each step with the seconds that it took."""
        tokens = sum(row.count for row in plan.rows)
        context = sum(row.count * (row.start + (row.count + 1) / 2) for row in plan.rows)
        expected = self._estimator.predict(tokens, context)
        if self._governor is None or not self._governor.is_trying:
            self._estimator.observe(tokens, context, seconds)
        if self._governor is not None:
            self._governor.learn(expected, seconds)
