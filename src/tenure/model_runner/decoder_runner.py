"""Executes step plans: builds the packed batch, runs the model, samples, and keeps the tokens of each slot.

States of a step: launched (it stands in `_results`, computed or not), then landed (its result was handed out, in the
order of launching). One plan may be launched before the one before it has landed: its rows read tokens that the runner
has appended itself, so nothing has to come back from the scheduler in between.

Owners: `Slots` holds everything about the items; the cache's tensors are written by the model at the blocks of the
plan's rows; the scheduler owns which block and slot is whose. If steps overlap, their thread computes, appends what was
drawn, and notes what failed; the thread that launches gives slots to new occupants and blocks to all. The two meet at
no slot: one that a step in flight uses is not given to another occupant.

A row fails alone when its output, or a key or value that it wrote, is not finite. Keys and values are all that later
rows see of its tokens, be they of the same item or of others, through the prefix cache or in a block that was freed; so
they decide, also for a piece of a prompt that puts nothing out. Hidden states would not do: they are still finite where
an infinite key has the weight 0, until a query of another sign meets it. And they may be infinite where nobody else is
concerned, if the last layer overflows after attention; that shows in the output, if there is one. A row fails in the
step that spoils its blocks, before anyone is told of them: they are zeroed, so that its values cannot spread (earlier
rows left only finite ones), and later rows of the same occupant get the same error uncomputed. A step that raises fails
all its rows in the same way.

The head makes a token or a vector of a row's hidden states: `SamplingHead`, `PoolingHead`.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from tenure.core.plan import Row, RowResult, StepPlan, StepResult
from tenure.kv.cache import KVCache
from tenure.layers.batch import PackedBatch
from tenure.model_runner.slots import Slots
from tenure.model_runner.step_results import StepResults

FAILED_BEFORE = "an earlier step of this item failed"
UNSOUND = "the model's keys and values for this text are not finite (NaN or infinity)"


class Model(Protocol):
    """The part of a language model that a step needs. T rows of the batch, D hidden width."""

    def forward(self, batch: PackedBatch, cache: KVCache) -> Tensor:
        """Hidden states (T, D), having written the keys and values of all rows."""


class Head(Protocol):
    """Makes the results of computed rows. It keeps nothing between calls."""

    def finish(self, rows: Sequence[Row], batch: PackedBatch, hidden_TD: Tensor, slots: Slots) -> list[RowResult]:
        """One result per row, in order. Nothing that is passed in is changed."""


class DecoderRunner:
    """Runs plans on a model in this process. Not for use by several threads at once."""

    def __init__(
        self,
        model: Model,
        cache: KVCache,
        head: Head,
        max_slots: int,
        max_model_len: int,
        results: StepResults | None = None,
    ) -> None:
        self._model = model
        self._cache = cache
        self._head = head
        self._slots = Slots(max_slots, max_model_len, cache.block_size)
        self._results = results or StepResults()

    def launch(self, plan: StepPlan) -> None:
        """Put a plan's batch together, but for tokens that steps in flight draw, and have it computed.

        A plan that contradicts what the slots hold raises `InternalError`.
        """
        self._results.check_room(plan)
        for start in plan.starts:
            self._slots.occupy(start)
        self._slots.extend(plan.rows)
        self._results.launch(partial(self._carry_out, plan, self._batch(plan.rows)))

    def land(self) -> StepResult:
        """The result of the oldest launched plan: one entry per row, in the plan's order."""
        return self._results.take()

    def _batch(self, rows: Sequence[Row]) -> PackedBatch:
        return self._slots.batch(rows, self._cache.layers[0].device)

    def _carry_out(self, plan: StepPlan, batch: PackedBatch) -> StepResult:
        failed = [bool(self._slots.failed[row.slot]) for row in plan.rows]
        live = [row for row, has_failed in zip(plan.rows, failed, strict=True) if not has_failed]
        with torch.inference_mode():
            computed = iter(self._compute(live, batch if len(live) == len(plan.rows) else None) if live else [])
        results = [
            RowResult(row.slot, row.generation, error=FAILED_BEFORE) if has_failed else next(computed)
            for row, has_failed in zip(plan.rows, failed, strict=True)
        ]
        return StepResult(plan.number, results)

    def _compute(self, rows: Sequence[Row], batch: PackedBatch | None) -> list[RowResult]:
        """Run the model on these rows, and note in the slots what was drawn and what failed: all, if this raises.

        None: some of the rows that were put together have failed since.
        """
        try:
            batch = batch or self._batch(rows)
            self._slots.fill(batch, rows)
            hidden_TD = self._model.forward(batch, self._cache)
            results = self._fail_unsound(batch, self._head.finish(rows, batch, hidden_TD, self._slots))
            self._note(rows, results)
        except BaseException:
            self._fail(rows)  # what they wrote to the cache was not checked
            raise
        return results

    def _fail_unsound(self, batch: PackedBatch, results: list[RowResult]) -> list[RowResult]:
        """The results, with an error for each row that wrote something that is not finite."""
        if self._cache.finite(batch.slot_mapping_T):
            return results
        sound = [self._cache.finite(batch.slot_mapping_T[first:end]) for first, end in pairwise(batch.query_starts_S)]
        return [
            result if finite or result.error else RowResult(result.slot, result.generation, error=UNSOUND)
            for result, finite in zip(results, sound, strict=True)
        ]

    def _note(self, rows: Sequence[Row], results: list[RowResult]) -> None:
        drawn = [(result.slot, token) for result in results for token in result.tokens]
        if drawn:
            self._slots.append(drawn)
        self._fail([row for row, result in zip(rows, results, strict=True) if result.error is not None])

    def _fail(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._slots.failed[row.slot] = True
        self._cache.clear([block for row in rows for block in self._slots.blocks_of(row)])
