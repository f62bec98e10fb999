"""The estimated cost of a step in seconds, fitted to measured steps."""

from tenure.core.budget import StepBudget

_TOKENS_SCALE = 32.0
_CONTEXT_SCALE = 8192.0
_RATE = 0.2
"""How far one step moves the estimate towards what it took."""
_SURPRISE = 3.0
"""How many times its estimate a step can have taken at most, as far as it is believed. A process that was stopped in a
long step would otherwise make its steps short, and so never learn again what long ones take."""
_LEAST_SURPRISE = 0.001


class StepCostEstimator:
    """Fits seconds = fixed + per_token * tokens + per_context * context by normalised least mean squares.

    Unlike least squares with forgetting, this keeps what it learned about large steps during a long run of small ones.
    `context` is the sum over all computed tokens of how many tokens each attends to.
    """

    def __init__(self) -> None:
        self.fixed = 0.0
        self.per_token = 0.0
        self.per_context = 0.0
        self._steps = 0

    def observe(self, tokens: int, context: float, seconds: float) -> None:
        """Learn from one finished step."""
        x = (1.0, tokens / _TOKENS_SCALE, context / _CONTEXT_SCALE)
        predicted = self.predict(tokens, context)
        rate = max(_RATE, 1.0 / (1 + self._steps))
        if rate == _RATE:  # the first steps are taken at their word
            seconds = min(seconds, max(_SURPRISE * predicted, _LEAST_SURPRISE))
        move = rate * (seconds - predicted) / sum(value * value for value in x)
        self.fixed = max(0.0, self.fixed + move * x[0])
        self.per_token = max(1e-9, self.per_token + move * x[1] / _TOKENS_SCALE)
        self.per_context = max(0.0, self.per_context + move * x[2] / _CONTEXT_SCALE)
        self._steps += 1

    def predict(self, tokens: int, context: float) -> float:
        """The seconds that such a step is expected to take."""
        return self.fixed + self.per_token * tokens + self.per_context * context

    def budget(self, tokens: int, step_time: float) -> StepBudget:
        """The budget of a step of at most `tokens` that is to stay near `step_time` seconds; 0 does not bound it."""
        if step_time <= 0:
            return StepBudget(tokens=tokens)
        return StepBudget(
            tokens=tokens,
            seconds=max(0.0, step_time - self.fixed),
            per_token=self.per_token,
            per_context=self.per_context,
        )
