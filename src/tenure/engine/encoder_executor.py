"""Carries out the steps of a model that reads each text in one piece: one packed batch, one answer for each text.

Nothing is kept from step to step: a plan brings every text whole, as the `Start` of its row. A text whose answer is not
finite fails alone.
"""

from collections import deque

import torch
from torch import Tensor

from tenure.core.plan import Row, RowResult, Start, StepPlan, StepResult
from tenure.errors import InternalError
from tenure.layers.texts import pack_texts
from tenure.models.base import EncoderModel
from tenure.pooling import Pooled, PoolingParams

MOST_IN_FLIGHT = 2
NOT_FINITE = "the model's output for this text is not finite (NaN or infinity)"


class EncoderExecutor:
    """Runs plans on an encoder in this process. Not for use by several threads at once."""

    def __init__(self, model: EncoderModel) -> None:
        self._model = model
        self._landing: deque[StepResult] = deque()

    def launch(self, plan: StepPlan) -> None:
        """Carry out a plan. One that does not bring each of its texts whole raises `InternalError`."""
        if len(self._landing) == MOST_IN_FLIGHT:
            raise InternalError(f"step {plan.number} was launched while {MOST_IN_FLIGHT} others had not landed")
        starts = [_start_of(row, start) for row, start in zip(plan.rows, plan.starts, strict=True)]
        batch = pack_texts(
            [start.tokens for start in starts], [start.first_segment for start in starts], self._model.device
        )
        with torch.inference_mode():
            answers = self._model.pool(batch, [_pooling(start) for start in starts])
        results = [_result(row, answer) for row, answer in zip(plan.rows, answers, strict=True)]
        self._landing.append(StepResult(plan.number, results))

    def land(self) -> StepResult:
        """The result of the oldest launched plan: one entry per row, in the plan's order."""
        if not self._landing:
            raise InternalError("no step is in flight")
        return self._landing.popleft()


def _start_of(row: Row, start: Start) -> Start:
    whole = (start.slot, start.generation, 0, len(start.tokens))
    if (row.slot, row.generation, row.start, row.count) != whole:
        raise InternalError(f"{row} is not the whole of {start}")
    return start


def _pooling(start: Start) -> PoolingParams:
    if start.pooling is None:
        raise InternalError("a text that is to be continued came to a model that only reads")
    return start.pooling


def _result(row: Row, answer: Tensor) -> RowResult:
    pooled = encode(answer)
    if pooled is None:
        return RowResult(row.slot, row.generation, error=NOT_FINITE)
    return RowResult(row.slot, row.generation, pooled=pooled)


def encode(answer: Tensor) -> Pooled | None:
    """An answer (rows, width) as it goes over the wire; None when it is not finite."""
    if not bool(torch.isfinite(answer).all()):
        return None
    return Pooled(len(answer), answer.to(torch.float32).contiguous().numpy().astype("<f4", copy=False).tobytes())
