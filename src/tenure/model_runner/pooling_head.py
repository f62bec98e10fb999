"""From hidden states to vectors and class scores: the head of a decoder for pooling tasks.

A decoder's last token has seen the whole text, so its hidden state stands for the text. It exists once the row that
ends the prompt is computed, whatever chunks or cached prefix came before. Other ways of pooling need the states of all
tokens, which a cached prefix does not have; models that need them are refused at load.

Legend: T rows of the batch, D hidden size, R rows that end a prompt, W numbers of an answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tenure.core.plan import Row, RowResult
from tenure.layers.batch import PackedBatch
from tenure.layers.pooling import unit_rows
from tenure.model_runner.slots import Slots
from tenure.outcomes import Outcome
from tenure.pooling import Pooled, PoolingParams, PoolingTask

NOT_FINITE = "the model's output for this text is not finite (NaN or infinity)"
NO_LENGTH = "the model's embedding of this text is zero"


class PoolableModel(Protocol):
    """The final norm and the head of a decoder."""

    def states(self, hidden_RD: Tensor) -> Tensor:
        """Hidden states after the final norm (R, D), float32."""

    def logits(self, hidden_RD: Tensor) -> Tensor:
        """Logits of classes (R, W), float32; called of classifiers alone."""


@dataclass(frozen=True, slots=True)
class PoolingHead:
    """Answers one task, `embed` or `classify`. `normalize`: embeddings get length 1 unless a request says otherwise."""

    model: PoolableModel
    task: PoolingTask
    normalize: bool = False

    def finish(self, rows: Sequence[Row], batch: PackedBatch, hidden_TD: Tensor, slots: Slots) -> list[RowResult]:
        """See `Head`."""
        ending = [index for index, row in enumerate(rows) if row.start + row.count == slots.prompt_lengths[row.slot]]
        results = [RowResult(row.slot, row.generation) for row in rows]
        if ending:
            last_R = torch.from_numpy(batch.query_starts_S[1:][ending] - 1).to(hidden_TD.device)
            answers_RW = self._answers(hidden_TD[last_R])
            for place, index in enumerate(ending):
                wanted = slots.pooling[rows[index].slot]
                results[index] = self._result(rows[index], wanted, answers_RW[place : place + 1])
        return results

    def _answers(self, hidden_RD: Tensor) -> Tensor:
        answers_RW = self.model.states(hidden_RD) if self.task is PoolingTask.EMBED else self.model.logits(hidden_RD)
        return answers_RW.float().cpu()

    def _result(self, row: Row, wanted: PoolingParams | None, answer_1W: Tensor) -> RowResult:
        if wanted is None or wanted.task is not self.task:
            error = f"this model answers the task {self.task} only"
            return RowResult(row.slot, row.generation, error=error, outcome=Outcome.INVALID)
        # The sigmoid of infinity is 1, which would hide the fault.
        sound = bool(answer_1W.isfinite().all())
        return pooled_row(row, self._finished(answer_1W, wanted) if sound else answer_1W, self.task)

    def _finished(self, answer_1W: Tensor, wanted: PoolingParams) -> Tensor:
        if self.task is PoolingTask.EMBED:
            answer_1W = answer_1W[:, : wanted.dimensions]
            return unit_rows(answer_1W) if wanted.activation and self.normalize else answer_1W
        if not wanted.activation:
            return answer_1W
        return answer_1W.sigmoid() if answer_1W.shape[1] == 1 else answer_1W.softmax(-1)


def pooled_row(row: Row, answer: Tensor, task: PoolingTask) -> RowResult:
    """The result of a pooling row: `answer` (rows, width) as little-endian float32.

    It is an error instead when the answer is not finite, or an embedding of zeros, which has no direction.
    """
    numbers = answer.float().contiguous().numpy().astype("<f4", copy=False)
    if not np.isfinite(numbers).all():
        return RowResult(row.slot, row.generation, error=NOT_FINITE)
    if task is PoolingTask.EMBED and not numbers.any():
        return RowResult(row.slot, row.generation, error=NO_LENGTH)
    return RowResult(row.slot, row.generation, pooled=Pooled(len(answer), numbers.tobytes()))
