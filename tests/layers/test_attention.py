"""Every attention back end against plain attention, written out, over random pages."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tenure.errors import CallerError
from tenure.kernels import native
from tenure.kernels.paged_attention import AttentionShape, group_decodes
from tenure.kv.cache import CacheShape, KVCache
from tenure.layers.attention import ATTENTION_BACKENDS, NATIVE_PAIRS, NATIVE_ROWS, attention_backend
from tenure.layers.batch import pack
from tenure.layers.rope import rotate_

CPU = torch.device("cpu")
MIXED = [(33, 20), (0, 1), (5, 2), (0, 17), (160, 1), (7, 1)]
needs_native = pytest.mark.skipif(not native.available(), reason="the native kernels were not built")
backends = pytest.mark.parametrize(
    "backend", [pytest.param(name, marks=needs_native if name == "native" else ()) for name in ATTENTION_BACKENDS]
)


def shape_of(num_heads: int, num_kv_heads: int, head_dim: int) -> AttentionShape:
    return AttentionShape(num_heads, num_kv_heads, head_dim, torch.float32, CPU)


SHAPE = shape_of(6, 2, 16)
LAYER = 1
"""Of three, whose blocks lie side by side."""


@dataclass
class Case:
    """Sequences of which `start` tokens are in the cache and `count` come in this step; heads are not rotated yet."""

    shape: AttentionShape
    pieces: list[tuple[int, int]]
    block_size: int = 8

    def __post_init__(self) -> None:
        random, shape = torch.Generator().manual_seed(1), self.shape
        self.starts, self.counts = np.array(self.pieces).T
        needed = -(-(self.starts + self.counts) // self.block_size)
        order = np.random.default_rng(3).permutation(int(needed.sum()) + 3)
        self.tables = np.full((len(self.pieces), int(needed.max())), 10**9)
        for row, (count, before) in enumerate(zip(needed, np.cumsum(needed) - needed, strict=True)):
            self.tables[row, :count] = order[before : before + count]
        size = CacheShape((None,) * 3, shape.num_kv_heads, shape.head_dim, torch.float32)
        self.cache = KVCache(size, len(order), self.block_size)
        self.history = [
            torch.randn(start + count, 2, shape.num_kv_heads, shape.head_dim, generator=random)
            for start, count in self.pieces
        ]
        for table, start, kv in zip(self.tables, self.starts, self.history, strict=True):
            for position in range(start):
                self.block(table, position)[:, :, position % self.block_size] = kv[position]
        rows = int(self.counts.sum())
        self.q = torch.randn(rows, shape.num_heads, shape.head_dim, generator=random)
        angles = torch.rand(rows, 1, shape.head_dim // 2, generator=random) * 6
        self.rotations = torch.polar(torch.ones_like(angles), angles)

    def block(self, table: np.ndarray, position: int) -> torch.Tensor:
        return self.cache.layers[LAYER][table[position // self.block_size]]

    def run(self, backend: str, window: int | None) -> torch.Tensor:
        batch = pack(np.zeros(len(self.q), np.int64), self.starts, self.counts, self.tables, self.block_size)
        step = attention_backend(self.shape, backend).begin(batch, self.rotations, {window: 3, 3: 2})
        new = torch.cat([kv[start:] for kv, start in zip(self.history, self.starts, strict=True)])
        return step.attend(window, torch.cat([self.q, new.flatten(1, 2)], dim=1), self.cache.layers[LAYER])

    def expected(self, window: int | None) -> torch.Tensor:
        """Plain attention, row by row."""
        q, row, out = self.q.clone(), 0, []
        rotate_(q, self.rotations)
        for (start, count), kv in zip(self.pieces, self.history, strict=True):
            keys, values = kv[:, 0].clone(), kv[:, 1]
            rotate_(keys[start:], self.rotations[row : row + count])
            for position in range(start, start + count):
                first = max(0, position + 1 - window) if window is not None else 0
                out.append(self._plain(q[row], keys[first : position + 1], values[first : position + 1]))
                row += 1
        return torch.stack(out)

    def _plain(self, q_NH: torch.Tensor, keys_LCH: torch.Tensor, values_LCH: torch.Tensor) -> torch.Tensor:
        heads = []
        for head, query in enumerate(q_NH):
            group = head // (self.shape.num_heads // self.shape.num_kv_heads)
            weights = torch.softmax(keys_LCH[:, group] @ query / math.sqrt(self.shape.head_dim), 0)
            heads.append(weights @ values_LCH[:, group])
        return torch.cat(heads)


@backends
@pytest.mark.parametrize("window", [None, 1, 5, 8, 19, 500])
@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 1)],
        [(16, 1), (7, 1), (200, 1), (8, 1), (31, 1)],
        [(0, 40)],
        [(40, NATIVE_ROWS), (0, 1), (11, NATIVE_ROWS + 1), (NATIVE_PAIRS // NATIVE_ROWS, NATIVE_ROWS + 1), (0, 129)],
        MIXED,
    ],
)
def test_attention(pieces: list[tuple[int, int]], window: int | None, backend: str) -> None:
    case = Case(SHAPE, pieces)
    torch.testing.assert_close(case.run(backend, window), case.expected(window), atol=1e-5, rtol=1e-5)


@backends
@pytest.mark.parametrize("block_size", [1, 7, 16, 32])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "head_dim"),
    [(3, 3, 64), (9, 3, 64), (8, 1, 64), (6, 2, 80), (2, 1, 128), (4, 2, 6), (40, 1, 36)],
)
def test_shapes_of_heads_and_blocks(
    num_heads: int, num_kv_heads: int, head_dim: int, block_size: int, backend: str
) -> None:
    pieces = [(255, 1), (256, 1), (0, 1), (127, 1), (63, 1), (30, 9), (0, 3)]
    case = Case(shape_of(num_heads, num_kv_heads, head_dim), pieces, block_size)
    for window in (None, 131):
        torch.testing.assert_close(case.run(backend, window), case.expected(window), atol=1e-5, rtol=1e-5)


@backends
def test_the_new_keys_and_values_are_in_the_cache(backend: str) -> None:
    case = Case(SHAPE, MIXED)
    case.run(backend, None)
    row = 0
    for (start, count), table, kv in zip(case.pieces, case.tables, case.history, strict=True):
        keys = kv[:, 0].clone()
        rotate_(keys[start:], case.rotations[row : row + count])
        for position in range(start + count):
            stored = case.block(table, position)[:, :, position % case.block_size]
            torch.testing.assert_close(stored, torch.stack([keys[position], kv[position, 1]]))
        row += count


@backends
@pytest.mark.parametrize("broken", ["query", "key", "value"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_what_is_not_finite_stays_in_its_sequence_and_is_not_lost(value: float, broken: str, backend: str) -> None:
    pieces = [(200, 1), (300, 1), (20, 5)]
    healthy, case = Case(SHAPE, pieces), Case(SHAPE, pieces)
    match broken:
        case "query":
            case.q[1, 0] = value
        case "key":
            case.block(case.tables[1], 290)[0, 0, 290 % 8] = value
        case "value":
            case.block(case.tables[1], 290)[1, 0, 290 % 8] = value
    out = case.run(backend, None)
    assert not out[1].isfinite().all()
    others = [0, 2, 3, 4, 5, 6]
    torch.testing.assert_close(out[others], healthy.run(backend, None)[others])


@needs_native
@pytest.mark.parametrize("threads", [1, 2])
def test_native_results_do_not_depend_on_the_batch_nor_on_threads(threads: int) -> None:
    together = Case(SHAPE, [(700, 1), *MIXED])
    out, row, before = together.run("native", None), 0, torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for index, (start, count) in enumerate(together.pieces):
            alone = Case(SHAPE, [(start, count)])
            alone.history, rows = [together.history[index]], slice(row, row + count)
            alone.q, alone.rotations = together.q[rows], together.rotations[rows]
            for position in range(start):
                alone.block(alone.tables[0], position)[:, :, position % 8] = alone.history[0][position]
            assert torch.equal(alone.run("native", None), out[rows])
            row += count
    finally:
        torch.set_num_threads(before)


def test_groups_hold_everyone_once_and_pad_at_most_twofold() -> None:
    lengths = np.random.default_rng(0).integers(1, 3000, 300)
    groups = group_decodes(lengths, bytes_per_token=1536)
    assert sorted(np.concatenate(groups).tolist()) == list(range(300))
    for group in groups:
        assert lengths[group].max() <= 2 * lengths[group].min()
        assert len(group) == 1 or len(group) * lengths[group].max() * 1536 <= 32 << 20


def test_equal_lengths_are_one_group_in_order() -> None:
    assert [group.tolist() for group in group_decodes(np.full(16, 200), 1536)] == [list(range(16))]


def test_an_unknown_back_end_is_refused() -> None:
    with pytest.raises(CallerError, match="no attention back end 'fast'"):
        attention_backend(SHAPE, "fast")


def test_native_attention_is_refused_for_other_element_types() -> None:
    half = AttentionShape(6, 2, 16, torch.bfloat16, CPU)
    with pytest.raises(CallerError, match="attention back end 'native' cannot run"):
        attention_backend(half, "native")
