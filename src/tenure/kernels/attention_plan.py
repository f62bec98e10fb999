"""The arguments of `paged_attention.c` for one step, shared by all layers of a model.

Legend: N query heads, S sequences, B blocks per table, I tiles, K tasks.
"""

import ctypes
from dataclasses import dataclass

import numpy as np

from tenure.kernels.paged_attention import AttentionShape, IntArray

MAX_QUERIES = 64
"""Query heads of all rows of a task that share a key-value head; a limit of the library."""
ROWS_PER_TASK = 4
"""Few, so that a short piece of a prompt occupies all cores; more rows would not be faster."""
SPLIT = 128
"""Keys of a task with a single row. Always the same, so that a result does not depend on what else is in the batch."""
NO_WINDOW = 1 << 60

_POINTER, _SIZE = ctypes.c_void_p, ctypes.c_int64


class _Heads(ctypes.Structure):
    """`heads_shape` of the library."""

    _fields_ = (
        ("num_heads", _SIZE),
        ("num_kv_heads", _SIZE),
        ("head_dim", _SIZE),
        ("block_size", _SIZE),
        ("scale", ctypes.c_float),
    )


class _Plan(ctypes.Structure):
    """`attention_plan` of the library."""

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


TASK_NUMBERS, MERGE_NUMBERS = 7, 3
"""Of an `attention_task` and an `attention_merge` of the library."""
ATTENTION_LAYOUT = (
    MAX_QUERIES,
    ctypes.sizeof(_Heads),
    ctypes.sizeof(_Plan),
    TASK_NUMBERS * ctypes.sizeof(_SIZE),
    MERGE_NUMBERS * ctypes.sizeof(_SIZE),
)
"""What `tenure_has_attention_layout` must agree with."""


@dataclass(frozen=True, slots=True)
class Heads:
    """Numbers and sizes of heads and blocks, as a struct of the library at `address`."""

    shape: AttentionShape
    address: int
    _kept: _Heads

    @classmethod
    def of(cls, shape: AttentionShape, block_size: int) -> "Heads":
        struct = _Heads(shape.num_heads, shape.num_kv_heads, shape.head_dim, block_size, shape.scale)
        return cls(shape, ctypes.addressof(struct), struct)


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """The `attention_plan` of one step for all layers with one window; it keeps the memory alive that it points to."""

    address: int
    _kept: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class _Tiles:
    """Neighbouring rows of one sequence, few enough for one task."""

    tables_I: IntArray
    first_rows_I: IntArray
    num_rows_I: IntArray
    first_positions_I: IntArray
    first_keys_I: IntArray
    last_keys_I: IntArray


def plan_attention(
    heads: Heads,
    query_starts_S: IntArray,
    context_lengths_S: IntArray,
    block_tables_SB: IntArray,
    sequences: IntArray,
    window: int | None,
) -> AttentionPlan:
    """Plan attention for all rows of `sequences`, which are indices into the arrays; vectorised over sequences."""
    shape, reach = heads.shape, NO_WINDOW if window is None else window
    rows_per_tile = min(ROWS_PER_TASK, MAX_QUERIES // (shape.num_heads // shape.num_kv_heads))
    tiles = _tiles(query_starts_S, context_lengths_S, sequences, rows_per_tile, reach)
    tasks_K7, merges, num_partials = _tasks(tiles)
    partials = np.empty(num_partials * shape.num_heads * (shape.head_dim + 2), dtype=np.float32)
    tables_SB = np.ascontiguousarray(block_tables_SB)
    assert (tasks_K7.shape[1], merges.shape[1]) == (TASK_NUMBERS, MERGE_NUMBERS)
    struct = _Plan(
        heads.address,
        tables_SB.ctypes.data,
        tables_SB.shape[1],
        reach,
        tasks_K7.ctypes.data,
        len(tasks_K7),
        merges.ctypes.data,
        len(merges),
        partials.ctypes.data,
    )
    return AttentionPlan(ctypes.addressof(struct), (struct, heads, tables_SB, tasks_K7, merges, partials))


def _tiles(starts_S: IntArray, contexts_S: IntArray, sequences: IntArray, rows_per_tile: int, reach: int) -> _Tiles:
    counts = (starts_S[1:] - starts_S[:-1])[sequences]
    tables_I, tile_I = _repeat(sequences, -(-counts // rows_per_tile))
    offsets_I = tile_I * rows_per_tile
    counts_I = (starts_S[1:] - starts_S[:-1])[tables_I]
    num_rows_I = np.minimum(rows_per_tile, counts_I - offsets_I)
    positions_I = contexts_S[tables_I] - counts_I + offsets_I
    return _Tiles(
        tables_I=tables_I,
        first_rows_I=starts_S[tables_I] + offsets_I,
        num_rows_I=num_rows_I,
        first_positions_I=positions_I,
        first_keys_I=np.maximum(positions_I + 1 - reach, 0),
        last_keys_I=positions_I + num_rows_I,
    )


def _tasks(tiles: _Tiles) -> tuple[IntArray, IntArray, int]:
    """`attention_task`s, `attention_merge`s, and the number of partial results."""
    keys_I = tiles.last_keys_I - tiles.first_keys_I
    parts_I = np.where(tiles.num_rows_I == 1, -(-keys_I // SPLIT), 1)
    tile_K, part_K = _repeat(np.arange(len(parts_I)), parts_I)
    first_partials_I = np.cumsum(np.where(parts_I > 1, parts_I, 0))
    num_partials = int(first_partials_I[-1]) if len(parts_I) else 0
    first_partials_I -= parts_I
    split_I, split_K = parts_I > 1, parts_I[tile_K] > 1
    first_keys_K = tiles.first_keys_I[tile_K] + part_K * SPLIT
    last_keys_K = tiles.last_keys_I[tile_K]
    tasks_K7 = np.stack(
        (
            tiles.tables_I[tile_K],
            tiles.first_rows_I[tile_K],
            tiles.num_rows_I[tile_K],
            tiles.first_positions_I[tile_K],
            first_keys_K,
            np.where(split_K, np.minimum(first_keys_K + SPLIT, last_keys_K), last_keys_K),
            np.where(split_K, first_partials_I[tile_K] + part_K, -1),
        ),
        axis=1,
    )
    merges = np.stack((tiles.first_rows_I, first_partials_I, parts_I), axis=1)[split_I]
    return tasks_K7, merges, num_partials


def _repeat(values: IntArray, counts: IntArray) -> tuple[IntArray, IntArray]:
    """Each value repeated `counts` times, and the index of each copy (0, 1, ...) among those of its value."""
    ends = np.cumsum(counts)
    return np.repeat(values, counts), np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - counts, counts)
