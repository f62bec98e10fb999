"""From the answer to a text to the result of its row."""

import torch
from torch import Tensor

from tenure.core.plan import Row, RowResult
from tenure.pooling import Pooled

NOT_FINITE = "the model's output for this text is not finite (NaN or infinity)"


def pooled_row(row: Row, answer: Tensor) -> RowResult:
    """The result with an answer (rows, width) as it goes over the wire; one that is not finite is an error."""
    if not bool(torch.isfinite(answer).all()):
        return RowResult(row.slot, row.generation, error=NOT_FINITE)
    data = answer.to(torch.float32).contiguous().numpy().astype("<f4", copy=False).tobytes()
    return RowResult(row.slot, row.generation, pooled=Pooled(len(answer), data))
