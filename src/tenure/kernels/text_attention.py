"""The arguments of `texts.c` for a batch of texts, shared by all layers of a model.

Legend: S texts, K tasks.
"""

import ctypes

import numpy as np

from tenure.kernels.paged_attention import IntArray

MAX_QUERIES = 256
"""Of a task; a limit of the library."""
MAX_HEAD_DIM = 128
"""Another one."""
TASK_NUMBERS = 4
"""Of a `text_task` of the library."""

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class TextPlan(ctypes.Structure):
    """How the rows of some texts attend: `text_plan` of the library."""

    _fields_ = (
        ("num_heads", _SIZE),
        ("head_dim", _SIZE),
        ("scale", ctypes.c_float),
        ("tasks", _POINTER),
        ("num_tasks", _SIZE),
    )
    kept: object
    """The memory that it points to."""


TEXT_LAYOUT = (MAX_QUERIES, MAX_HEAD_DIM, ctypes.sizeof(TextPlan), TASK_NUMBERS * ctypes.sizeof(_SIZE))
"""What `tenure_has_text_layout` must agree with."""


def plan_texts(lengths_S: IntArray, keys_S: IntArray, num_heads: int, head_dim: int) -> TextPlan:
    """Plan for texts whose rows lie side by side, from row 0 on; all rows of a text attend to its first `keys_S`, at
    least one.

    The queries of a text are shared out evenly over its tasks.
    """
    parts_S = -(-lengths_S // MAX_QUERIES)
    queries_S = -(-lengths_S // parts_S)
    texts_K = np.repeat(np.arange(len(lengths_S)), parts_S)
    parts_K = np.arange(len(texts_K)) - np.repeat(np.cumsum(parts_S) - parts_S, parts_S)
    first_queries_K = parts_K * queries_S[texts_K]
    tasks_K4 = np.stack(
        (
            (np.cumsum(lengths_S) - lengths_S)[texts_K],
            keys_S[texts_K],
            first_queries_K,
            np.minimum(queries_S[texts_K], lengths_S[texts_K] - first_queries_K),
        ),
        axis=1,
    )
    assert tasks_K4.shape[1] == TASK_NUMBERS
    plan = TextPlan(num_heads, head_dim, head_dim**-0.5, tasks_K4.ctypes.data, len(tasks_K4))
    plan.kept = tasks_K4
    return plan
