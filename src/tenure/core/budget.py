"""The budget of one step, in tokens and in estimated seconds."""

import math

import msgspec


class StepBudget(msgspec.Struct, frozen=True, kw_only=True):
    """At most `tokens`, and an estimated cost of about `seconds`.

    The estimate: `per_token` for each token computed plus `per_context` for each token that it attends to.
    """

    tokens: int
    seconds: float = math.inf
    per_token: float = 0.0
    per_context: float = 0.0

    def cost(self, start: int, count: int) -> float:
        """The estimated seconds of computing `count` tokens from position `start` on."""
        return count * (self.per_token + self.per_context * (start + (count + 1) / 2))

    def affordable(self, start: int, seconds: float) -> int:
        """How many tokens from position `start` on cost at most `seconds`: the inverse of `cost`, up to `tokens`."""
        linear = self.per_token + self.per_context * (start + 0.5)
        if math.isinf(seconds) or not linear:
            return self.tokens
        seconds = max(0.0, seconds)
        # The positive root of per_context/2 * n^2 + linear * n = seconds, in the form that does not cancel.
        root = 2 * seconds / (linear + math.sqrt(linear * linear + 2 * self.per_context * seconds))
        return int(min(root, self.tokens))


class RemainingBudget:
    """The rest of a budget while a step is being planned. A part can be reserved for prompts."""

    def __init__(self, budget: StepBudget, held_back: float) -> None:
        self._budget = budget
        self._held_tokens = int(budget.tokens * held_back)
        self._held_seconds = budget.seconds * held_back if held_back else 0.0
        self._tokens = budget.tokens - self._held_tokens
        self._seconds = budget.seconds if math.isinf(budget.seconds) else budget.seconds - self._held_seconds

    def hold_back(self, start: int, wanted: int) -> None:
        """Hold back what `wanted` tokens from position `start` on cost, but half of what is left at most."""
        tokens = min(wanted, self._tokens // 2)
        seconds = max(0.0, min(self._budget.cost(start, wanted), self._seconds / 2))
        self._held_tokens, self._held_seconds = tokens, seconds
        self._tokens -= tokens
        self._seconds -= seconds

    def open_reserve(self) -> None:
        """From here on, what was held back may be spent too."""
        self._tokens += self._held_tokens
        self._seconds += self._held_seconds
        self._held_tokens, self._held_seconds = 0, 0.0

    def take(self, start: int, wanted: int, at_least: int = 0) -> int:
        """Spend on up to `wanted` tokens from position `start` on; returns how many are granted.

        `at_least` that many are granted even if they cost more seconds than are left, but never more tokens.
        """
        affordable = self._budget.affordable(start, self._seconds)
        granted = max(0, min(wanted, self._tokens, max(affordable, at_least)))
        self._spend(start, granted)
        return granted

    def take_all(self, wanted: int, *, anyway: bool) -> bool:
        """Spend on `wanted` tokens from position 0 on, or on none of them; `anyway` whatever they cost."""
        granted = anyway or wanted <= min(self._tokens, self._budget.affordable(0, self._seconds))
        if granted:
            self._spend(0, wanted)
        return granted

    def _spend(self, start: int, count: int) -> None:
        self._tokens -= count
        self._seconds -= self._budget.cost(start, count)
