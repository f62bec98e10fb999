"""From hidden states to vectors and class scores: the head of a decoder that reads and does not write.

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
import torch.nn.functional as F
from torch import Tensor

from tenure.core.plan import Row, RowResult
from tenure.engine.slots import Slots
from tenure.layers.batch import PackedBatch
from tenure.outcomes import Outcome
from tenure.pooling import Pooled, PoolingParams, PoolingTask

OUTPUT_NOT_FINITE = "the model's output is not finite"


class PoolableModel(Protocol):
    """What makes something of the hidden states of last tokens."""

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
            for index, answer_W in zip(ending, self._answers(hidden_TD[last_R]), strict=True):
                results[index] = self._result(rows[index], slots.pooling[rows[index].slot], answer_W)
        return results

    def _answers(self, hidden_RD: Tensor) -> Tensor:
        answers_RW = self.model.states(hidden_RD) if self.task is PoolingTask.EMBED else self.model.logits(hidden_RD)
        return answers_RW.float().cpu()

    def _result(self, row: Row, wanted: PoolingParams | None, answer_W: Tensor) -> RowResult:
        if wanted is None or wanted.task is not self.task:
            error = f"this model answers the task {self.task} only"
            return RowResult(row.slot, row.generation, error=error, outcome=Outcome.INVALID)
        answer_W = self._finished(answer_W, wanted)
        if not answer_W.isfinite().all():
            return RowResult(row.slot, row.generation, error=OUTPUT_NOT_FINITE)
        pooled = Pooled(1, answer_W.numpy().astype(np.dtype("<f4"), copy=False).tobytes())
        return RowResult(row.slot, row.generation, pooled=pooled)

    def _finished(self, answer_W: Tensor, wanted: PoolingParams) -> Tensor:
        if self.task is PoolingTask.EMBED:
            answer_W = answer_W[: wanted.dimensions]
            return F.normalize(answer_W, dim=0) if wanted.activation and self.normalize else answer_W
        if not wanted.activation:
            return answer_W
        return answer_W.sigmoid() if len(answer_W) == 1 else answer_W.softmax(0)
