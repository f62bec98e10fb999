"""The arguments of `paged_attention.c` for one step, shared by all layers of a model.

Legend: N query heads, S sequences, B blocks per table, I tiles, K tasks.
"""

import ctypes

import numpy as np

from tenure.kernels.paged_attention import AttentionShape, IntArray, LayerGroup

MAX_QUERIES = 64
"""Query heads of all rows of a task that share a key-value head; a limit of the library."""
ROWS_PER_TASK = 4
"""Few, so that a short piece of a prompt occupies all cores; more rows would not be faster."""
SPLIT = 128
"""Keys of a task with a single row. Always the same, so that a result does not depend on what else is in the batch."""
NO_WINDOW = 1 << 60

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class Heads(ctypes.Structure):
    """Numbers and sizes of heads and blocks in one group of layers: `heads_shape` of the library."""

    _fields_ = (
        ("num_heads", _SIZE),
        ("num_kv_heads", _SIZE),
        ("head_dim", _SIZE),
        ("block_size", _SIZE),
        ("block_stride", _SIZE),
        ("scale", ctypes.c_float),
    )

    @classmethod
    def of(cls, shape: AttentionShape, block_size: int, group: LayerGroup) -> "Heads":
        stride = group.heads_per_block(shape) * block_size * shape.head_dim
        return cls(shape.num_heads, shape.num_kv_heads, shape.head_dim, block_size, stride, shape.scale)


class AttentionPlan(ctypes.Structure):
    """`attention_plan` of the library, of one step for all layers with one window."""

    _fields_ = (
        ("shape", _POINTER),
        ("tables", _POINTER),
        ("table_stride", _SIZE),
        ("window", _SIZE),
        ("tasks", _POINTER),
        ("num_tasks", _SIZE),
        ("merges", _POINTER),
        ("num_merges", _SIZE),
        ("partials", _POINTER),
    )
    kept: tuple[object, ...]
    """The memory that it points to."""


TASK_NUMBERS, MERGE_NUMBERS = 7, 3
"""Of an `attention_task` and an `attention_merge` of the library."""
ATTENTION_LAYOUT = (
    MAX_QUERIES,
    ctypes.sizeof(Heads),
    ctypes.sizeof(AttentionPlan),
    TASK_NUMBERS * ctypes.sizeof(_SIZE),
    MERGE_NUMBERS * ctypes.sizeof(_SIZE),
)
"""What `tenure_has_attention_layout` must agree with."""


def plan_attention(
    heads: Heads,
    query_starts_S: IntArray,
    context_lengths_S: IntArray,
    block_tables_SB: IntArray,
    sequences: IntArray,
    window: int | None,
) -> AttentionPlan:
    """Plan attention for all rows of `sequences`, which are indices into the arrays; vectorised over sequences."""
    reach = NO_WINDOW if window is None else window
    rows_per_tile = min(ROWS_PER_TASK, MAX_QUERIES // (heads.num_heads // heads.num_kv_heads))
    tasks_K7, merges, num_partials = _tasks(query_starts_S, context_lengths_S, sequences, rows_per_tile, reach)
    partials = np.empty(num_partials * heads.num_heads * (heads.head_dim + 2), dtype=np.float32)
    tables_SB = np.ascontiguousarray(block_tables_SB)
    assert (tasks_K7.shape[1], merges.shape[1]) == (TASK_NUMBERS, MERGE_NUMBERS)
    plan = AttentionPlan(
        ctypes.addressof(heads),
        tables_SB.ctypes.data,
        tables_SB.shape[1],
        reach,
        tasks_K7.ctypes.data,
        len(tasks_K7),
        merges.ctypes.data,
        len(merges),
        partials.ctypes.data,
    )
    plan.kept = heads, tables_SB, tasks_K7, merges, partials
    return plan


def _tasks(
    starts_S: IntArray, contexts_S: IntArray, sequences: IntArray, rows_per_tile: int, reach: int
) -> tuple[IntArray, IntArray, int]:
    """`attention_task`s, `attention_merge`s, and the number of partial results.

    A tile is some neighbouring rows of one sequence, few enough for one task; the keys of a single row make several.
    """
    tables_I, tile_I = _repeat(sequences, -(-(starts_S[1:] - starts_S[:-1])[sequences] // rows_per_tile))
    offsets_I = tile_I * rows_per_tile
    counts_I = (starts_S[1:] - starts_S[:-1])[tables_I]
    first_rows_I, num_rows_I = starts_S[tables_I] + offsets_I, np.minimum(rows_per_tile, counts_I - offsets_I)
    positions_I = contexts_S[tables_I] - counts_I + offsets_I
    first_keys_I, last_keys_I = np.maximum(positions_I + 1 - reach, 0), positions_I + num_rows_I
    parts_I = np.where(num_rows_I == 1, -(-(last_keys_I - first_keys_I) // SPLIT), 1)
    tile_K, part_K = _repeat(np.arange(len(parts_I)), parts_I)
    first_partials_I = np.cumsum(np.where(parts_I > 1, parts_I, 0))
    num_partials = int(first_partials_I[-1]) if len(parts_I) else 0
    first_partials_I -= parts_I
    split_I, split_K = parts_I > 1, parts_I[tile_K] > 1
    first_keys_K = first_keys_I[tile_K] + part_K * SPLIT
    last_keys_K = last_keys_I[tile_K]
    tasks_K7 = np.stack(
        (
            tables_I[tile_K],
            first_rows_I[tile_K],
            num_rows_I[tile_K],
            positions_I[tile_K],
            first_keys_K,
            np.where(split_K, np.minimum(first_keys_K + SPLIT, last_keys_K), last_keys_K),
            np.where(split_K, first_partials_I[tile_K] + part_K, -1),
        ),
        axis=1,
    )
    merges = np.stack((first_rows_I, first_partials_I, parts_I), axis=1)[split_I]
    return tasks_K7, merges, num_partials


def _repeat(values: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Each value repeated `counts` times, and the index of each copy (0, 1, ...) among those of its value."""
    ends = np.cumsum(counts)
    return np.repeat(values, counts), np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
