"""Carries out step plans: builds the packed batch, runs the model, samples, and keeps what it needs to go on alone.

States of a step: launched (its result stands in `_landing`), then landed (its result was handed out, in the order of
launching). One plan may be launched before the one before it has landed: its rows read tokens that the executor has
appended itself, so nothing has to come back from the scheduler in between.

Owners: `Slots` holds everything about the items; the cache's tensors are written by the model at the blocks of the
plan's rows; the scheduler owns which block and slot is whose. A row whose logits are not finite fails alone: its blocks
are zeroed, so that its values cannot spread, and later rows of the same occupant get the same error uncomputed.

Logits are computed for rows that draw and, a bounded number at a time, for the prompt rows whose logprobs are asked
for. A row's `prompt_logprobs` cover the positions that its logits predict: start + 1 .. start + count within the
prompt, with a leading None for position 0 when start is 0. So the chunks of a prompt, end to end, give each position
once.
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from tenure.core.plan import Row, RowResult, StepPlan, StepResult
from tenure.engine.sampler import CALLERS_FAULTS, Sampler
from tenure.engine.slots import Slots
from tenure.errors import InternalError
from tenure.kv.cache import KVCache
from tenure.layers.batch import PackedBatch
from tenure.outcomes import Outcome
from tenure.sampling import TokenLogprobs

MOST_IN_FLIGHT = 2
PROMPT_LOGITS_ROWS = 64
"""How many prompt rows' logits exist at a time."""


Draw = tuple[int | None, TokenLogprobs | None, str | None]
"""Token, its logprobs, or an error."""
_NOTHING_DRAWN: Draw = (None, None, None)


class Model(Protocol):
    """The part of a language model that a step needs. T rows of the batch, D hidden width, R rows, V vocabulary."""

    def forward(self, batch: PackedBatch, cache: KVCache) -> Tensor:
        """Hidden states (T, D), having written the keys and values of all rows."""

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Raw float32 logits (R, V)."""


@dataclass(frozen=True, slots=True)
class ExecutorSnapshot:
    steps: int
    in_flight: int
    tokens_computed: int
    tokens_drawn: int
    rows_failed: int


class ModelExecutor:
    """Runs plans on a model in this process. Not for use by several threads at once."""

    def __init__(self, model: Model, cache: KVCache, sampler: Sampler, max_slots: int, max_model_len: int) -> None:
        self._model = model
        self._cache = cache
        self._sampler = sampler
        self._slots = Slots(max_slots, max_model_len, cache.block_size)
        self._landing: deque[StepResult] = deque()
        self._counts = ExecutorSnapshot(0, 0, 0, 0, 0)

    def launch(self, plan: StepPlan) -> None:
        """Carry out a plan. A plan that contradicts what the slots hold raises `InternalError`."""
        if len(self._landing) == MOST_IN_FLIGHT:
            raise InternalError(f"step {plan.number} was launched while {MOST_IN_FLIGHT} others had not landed")
        for start in plan.starts:
            self._slots.occupy(start)
        self._slots.extend(plan.rows)
        failed = [bool(self._slots.failed[row.slot]) for row in plan.rows]
        live = [row for row, has_failed in zip(plan.rows, failed, strict=True) if not has_failed]
        with torch.inference_mode():
            computed = iter(self._compute(live) if live else [])
        results = [
            _failed_before(row) if has_failed else next(computed)
            for row, has_failed in zip(plan.rows, failed, strict=True)
        ]
        self._landing.append(StepResult(plan.number, results))
        self._count(live, results)

    def land(self) -> StepResult:
        """The result of the oldest launched plan: one entry per row, in the plan's order."""
        if not self._landing:
            raise InternalError("no step is in flight")
        return self._landing.popleft()

    def snapshot(self) -> ExecutorSnapshot:
        return replace(self._counts, in_flight=len(self._landing))

    def _compute(self, rows: list[Row]) -> list[RowResult]:
        """Run the model on these rows, draw, and note in the slots what was drawn and what failed."""
        batch = self._slots.batch(rows, self._cache.layers[0].device)
        hidden_TD = self._model.forward(batch, self._cache)
        first_rows = batch.query_starts_S[:-1].tolist()
        draws = self._draw(rows, batch, hidden_TD)
        results = []
        for row, first in zip(rows, first_rows, strict=True):
            prompt, failure = self._prompt_logprobs(row, hidden_TD[first : first + row.count])
            token, logprobs, error = next(draws) if row.samples else _NOTHING_DRAWN
            error = error or failure
            if error is None:
                results.append(RowResult(row.slot, row.generation, token, logprobs, prompt))
            else:
                outcome = Outcome.INVALID if error in CALLERS_FAULTS else Outcome.ENGINE_ERROR
                results.append(RowResult(row.slot, row.generation, error=error, outcome=outcome))
        self._note(rows, results)
        return results

    def _draw(self, rows: list[Row], batch: PackedBatch, hidden_TD: Tensor) -> Iterator[Draw]:
        """Token, logprobs and error of each row that draws, in order."""
        drawing = [index for index, row in enumerate(rows) if row.samples]
        if not drawing:
            return iter(())
        last_R = torch.from_numpy(batch.query_starts_S[1:][drawing] - 1).to(hidden_TD.device)
        states = [self._slots.state(rows[index].slot) for index in drawing]
        sampled = self._sampler.sample(self._model.logits(hidden_TD[last_R]), states)
        return zip(sampled.tokens, sampled.logprobs, sampled.errors, strict=True)

    def _prompt_logprobs(self, row: Row, hidden_TD: Tensor) -> tuple[list[TokenLogprobs | None] | None, str | None]:
        """What the row reports of prompt positions, if asked to, or an error; `hidden_TD` is of this row alone."""
        best = self._slots.state(row.slot).sampling.prompt_logprobs
        prompt_length = int(self._slots.prompt_lengths[row.slot])
        if best is None or row.start >= prompt_length:
            return None, None
        reports: list[TokenLogprobs | None] = [] if row.start else [None]
        end = min(row.start + row.count + 1, prompt_length)
        for first in range(row.start + 1, end, PROMPT_LOGITS_ROWS):
            last = min(first + PROMPT_LOGITS_ROWS, end)
            logits_RV = self._model.logits(hidden_TD[first - row.start - 1 : last - row.start - 1])
            tokens = self._slots.tokens[row.slot, first:last].tolist()
            found, error = self._sampler.prompt_logprobs(logits_RV, tokens, best)
            if error is not None:
                return None, error
            reports += found
        return reports, None

    def _note(self, rows: list[Row], results: list[RowResult]) -> None:
        drawn = [(result.slot, result.token) for result in results if result.token is not None]
        if drawn:
            self._slots.append(drawn)
        for row, result in zip(rows, results, strict=True):
            if result.error is not None:
                self._slots.failed[row.slot] = True
                self._cache.clear(self._slots.blocks_of(row))

    def _count(self, computed: list[Row], results: list[RowResult]) -> None:
        counts = self._counts
        self._counts = ExecutorSnapshot(
            steps=counts.steps + 1,
            in_flight=0,
            tokens_computed=counts.tokens_computed + sum(row.count for row in computed),
            tokens_drawn=counts.tokens_drawn + sum(result.token is not None for result in results),
            rows_failed=counts.rows_failed + sum(result.error is not None for result in results),
        )


def _failed_before(row: Row) -> RowResult:
    return RowResult(row.slot, row.generation, error="an earlier step of this item failed")
