"""From the answer to a text to the result of its row."""

import numpy as np
from torch import Tensor

from tenure.core.plan import Row, RowResult
from tenure.pooling import Pooled, PoolingTask

NOT_FINITE = "the model's output for this text is not finite (NaN or infinity)"
NO_LENGTH = "the model's embedding of this text is zero"


def pooled_row(row: Row, answer: Tensor, task: PoolingTask) -> RowResult:
    """The result with an answer (rows, width) as it goes over the wire.

    One that is not finite is an error, and so is an embedding of zeros: it would be as far from all texts as from none.
    """
    numbers = answer.float().contiguous().numpy().astype("<f4", copy=False)
    if not np.isfinite(numbers).all():
        return RowResult(row.slot, row.generation, error=NOT_FINITE)
    if task is PoolingTask.EMBED and not numbers.any():
        return RowResult(row.slot, row.generation, error=NO_LENGTH)
    return RowResult(row.slot, row.generation, pooled=Pooled(len(answer), numbers.tobytes()))
