"""Executes the steps of an encoder: one packed batch of whole texts, one answer for each text.

Nothing is kept from step to step: a plan brings every text whole, as the `Start` of its row. A text whose answer is not
finite, or an embedding of zeros, fails alone.
"""

from functools import partial

import torch

from tenure.core.plan import StepPlan, StepResult
from tenure.errors import InternalError
from tenure.layers.text_batch import TextBatch, pack_texts
from tenure.model_runner.pooling_head import pooled_row
from tenure.model_runner.step_results import StepResults
from tenure.models.encoder import Encoder
from tenure.pooling import PoolingParams


class EncoderRunner:
    """Runs plans on an encoder in this process. Not for use by several threads at once."""

    def __init__(self, model: Encoder, results: StepResults | None = None) -> None:
        self._model = model
        self._results = results or StepResults()

    def launch(self, plan: StepPlan) -> None:
        """Have a plan computed. One that does not bring each of its texts whole raises `InternalError`."""
        self._results.check_room(plan)
        for row, start in zip(plan.rows, plan.starts, strict=True):
            whole = (start.slot, start.generation, 0, len(start.tokens))
            if (row.slot, row.generation, row.start, row.count) != whole or start.pooling is None:
                raise InternalError(f"{row} does not pool the whole of {start}")
        starts = plan.starts
        batch = pack_texts(
            [start.tokens for start in starts],
            [start.first_segment for start in starts],
            self._model.device,
            [start.unattended for start in starts],
        )
        self._results.launch(
            partial(self._carry_out, plan, batch, [start.pooling for start in starts if start.pooling is not None])
        )

    def land(self) -> StepResult:
        """The result of the oldest launched plan: one entry per row, in the plan's order."""
        return self._results.take()

    def _carry_out(self, plan: StepPlan, batch: TextBatch, wanted: list[PoolingParams]) -> StepResult:
        with torch.inference_mode():
            answers = self._model.pool(batch, wanted)
        results = [
            pooled_row(row, answer, one.task) for row, answer, one in zip(plan.rows, answers, wanted, strict=True)
        ]
        return StepResult(plan.number, results)
