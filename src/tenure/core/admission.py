"""Admission control: the gate decides which requests are admitted to this engine.

A request is admitted whole or not at all: it gets one permit for itself, one for each of its items and one for each of
its prompt tokens, as a `Permit` held by the engine server's entry for it. Only `release` of that permit gives them
back; a second release raises. Limits are exact because the gate is the only one that counts, and it counts at the
moment it answers.
The engine's I/O thread is the only thread that touches this object.
"""

import math

import msgspec

from tenure.core.ledger import LedgerError
from tenure.errors import Refusal, too_large
from tenure.outcomes import Outcome
from tenure.token_lists import TokenLists


class GateLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for all open requests together (running and waiting), and for a single item."""

    items: int
    tokens: int
    capacity: int
    """The most tokens of one item, prompt and output together: window or block pool, whichever is smaller."""
    vocabulary_size: int


class GateSnapshot(msgspec.Struct, frozen=True, gc=False):
    requests: int
    items: int
    items_limit: int
    tokens: int
    tokens_limit: int


class Permit:
    """The items and prompt tokens counted for one admitted request, until `Gate.release`."""

    __slots__ = ("items", "number", "tokens")

    def __init__(self, number: int, items: int, tokens: int) -> None:
        self.number = number
        self.items = items
        self.tokens = tokens

    def __repr__(self) -> str:
        return f"<Permit {self.number}: {self.items} items, {self.tokens} tokens>"


_MEMORY = 10.0
"""Seconds over which the rate of service is averaged."""
_LEAST_WAIT, _LONGEST_WAIT = 1.0, 60.0


class ServiceRate:
    """The rate at which permits were released lately, for the estimate of `retry_after`."""

    def __init__(self) -> None:
        self._items = 0.0
        self._tokens = 0.0
        self._at = 0.0

    def note(self, permit: Permit, now: float) -> None:
        """Note the release of a permit."""
        fading = math.exp(-max(0.0, now - self._at) / _MEMORY)
        self._items = self._items * fading + permit.items
        self._tokens = self._tokens * fading + permit.tokens
        self._at = max(self._at, now)

    def wait(self, items: int, tokens: int, now: float) -> float:
        """Estimated seconds until `items` and `tokens` have been released; from 1 to 60."""
        fading = math.exp(-max(0.0, now - self._at) / _MEMORY)
        waits = [
            math.inf if given <= 0 else missing * _MEMORY / (given * fading)
            for missing, given in ((items, self._items), (tokens, self._tokens))
            if missing > 0
        ]
        return min(max([_LEAST_WAIT, *waits]), _LONGEST_WAIT)


class Gate:
    """Counts permits; see the module's docstring. `now` is in seconds, on any clock that does not go back."""

    def __init__(self, limits: GateLimits) -> None:
        self.limits = limits
        self._permits: dict[int, Permit] = {}
        self._items = 0
        self._tokens = 0
        self._asked = 0
        self._rate = ServiceRate()

    def __repr__(self) -> str:
        return repr(self.snapshot())

    def ask(self, prompts: TokenLists, n: int, *, pooled: bool = False, now: float = 0.0) -> Permit | Refusal:
        """Admit a request of `n` choices for each of `prompts`, or say why not. Nothing is held after a refusal.

        Prompts leave room for one more token, unless they are `pooled`: read and not continued.
        """
        self._asked += 1
        permit = Permit(self._asked, len(prompts) * n, prompts.total)
        refusal = (
            self._unfit(prompts, n, self.limits.capacity - (not pooled))
            or too_large(permit.items, permit.tokens, self.limits.items, self.limits.tokens)
            or self._full(permit, now)
        )
        if refusal:
            return refusal
        self._permits[permit.number] = permit
        self._items += permit.items
        self._tokens += permit.tokens
        return permit

    def release(self, permit: Permit, now: float = 0.0) -> None:
        """The request ended and holds nothing; raises when the permit is not held."""
        if self._permits.get(permit.number) is not permit:
            raise LedgerError(f"{permit} is not held")
        del self._permits[permit.number]
        self._items -= permit.items
        self._tokens -= permit.tokens
        self._rate.note(permit, now)

    def snapshot(self) -> GateSnapshot:
        return GateSnapshot(len(self._permits), self._items, self.limits.items, self._tokens, self.limits.tokens)

    def audit(self) -> None:
        """Recount; raises `LedgerError` when the sums differ from the permits or pass a limit."""
        items = sum(permit.items for permit in self._permits.values())
        tokens = sum(permit.tokens for permit in self._permits.values())
        if (items, tokens) != (self._items, self._tokens):
            raise LedgerError(f"{self} differs from its permits: {items} items, {tokens} tokens")
        if items > self.limits.items or tokens > self.limits.tokens:
            raise LedgerError(f"{self} is past its limits")

    def _unfit(self, prompts: TokenLists, n: int, longest: int) -> Refusal | None:
        """What the API process should have refused; checked again, since nothing unfit may reach the scheduler."""
        if not prompts or n < 1:
            return Refusal(Outcome.INVALID, "invalid_request", "a request needs at least one prompt and one choice")
        lengths = prompts.lengths()
        least, most = min(lengths), max(lengths)
        if least < 1 or sum(lengths) != prompts.total:
            message = f"prompt {lengths.index(least)} is empty"
            return Refusal(Outcome.INVALID, "invalid_request", message)
        if not prompts.all_below(self.limits.vocabulary_size):
            return Refusal(Outcome.INVALID, "invalid_request", "a prompt has tokens outside the vocabulary")
        if most > longest:
            message = f"prompt {lengths.index(most)} has {most} tokens; at most {longest} fit"
            return Refusal(Outcome.INVALID, "context_length_exceeded", message)
        return None

    def _full(self, permit: Permit, now: float) -> Refusal | None:
        items = self._items + permit.items - self.limits.items
        tokens = self._tokens + permit.tokens - self.limits.tokens
        if items <= 0 and tokens <= 0:
            return None
        wait = self._rate.wait(items, tokens, now)
        return Refusal(Outcome.QUEUE_FULL, "queue_full", "too many requests are waiting; try again later", wait)
