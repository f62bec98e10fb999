"""Every attention back end against plain attention, written out, over random pages."""

import math

import numpy as np
import pytest
import torch

from tenure.errors import CallerError
from tenure.kernels.paged_attention import AttentionShape, group_decodes
from tenure.kv.cache import CacheShape, KVCache
from tenure.layers.attention import ATTENTION_BACKENDS, attention_backend
from tenure.layers.batch import pack

BLOCK_SIZE = 8
SHAPE = AttentionShape(num_heads=6, num_kv_heads=2, head_dim=16, dtype=torch.float32, device=torch.device("cpu"))


def plain(q_NH: torch.Tensor, keys_LCH: torch.Tensor, values_LCH: torch.Tensor, window: int | None) -> torch.Tensor:
    """One row that sees all these keys, or the last `window` of them."""
    if window is not None:
        keys_LCH, values_LCH = keys_LCH[-window:], values_LCH[-window:]
    heads = []
    for head, query in enumerate(q_NH):
        group = head // (SHAPE.num_heads // SHAPE.num_kv_heads)
        weights = torch.softmax(keys_LCH[:, group] @ query / math.sqrt(SHAPE.head_dim), 0)
        heads.append(weights @ values_LCH[:, group])
    return torch.cat(heads)


@pytest.mark.parametrize("backend", ATTENTION_BACKENDS)
@pytest.mark.parametrize("window", [None, 1, 5, 8, 19, 500])
@pytest.mark.parametrize(
    "pieces",
    [
        [(0, 1)],
        [(16, 1), (7, 1), (200, 1), (8, 1), (31, 1)],
        [(0, 40)],
        [(33, 20), (0, 1), (5, 2), (0, 17), (160, 1), (7, 1)],
    ],
)
def test_attention(pieces: list[tuple[int, int]], window: int | None, backend: str) -> None:
    random = torch.Generator().manual_seed(1)
    starts, counts = np.array(pieces).T
    needed = -(-(starts + counts) // BLOCK_SIZE)
    order = np.random.default_rng(3).permutation(int(needed.sum()) + 3)
    tables = np.full((len(pieces), int(needed.max())), 10**9)
    for row, (count, before) in enumerate(zip(needed, np.cumsum(needed) - needed, strict=True)):
        tables[row, :count] = order[before : before + count]
    cache = KVCache(CacheShape(1, 2, 16, torch.float32), len(order), BLOCK_SIZE)
    history = [torch.randn(start + count, 2, 2, 16, generator=random) for start, count in pieces]
    for table, start, kv in zip(tables, starts, history, strict=True):
        for position in range(start):
            cache.layers[0][table[position // BLOCK_SIZE], :, :, position % BLOCK_SIZE] = kv[position]
    q = torch.randn(int(counts.sum()), 6, 16, generator=random)
    batch = pack(np.zeros(int(counts.sum()), np.int64), starts, counts, tables, BLOCK_SIZE)
    step = attention_backend(SHAPE, backend).begin(batch, [window, 3])
    new = torch.cat([kv[start:] for kv, start in zip(history, starts, strict=True)])

    out = step.attend(window, q, new, cache.layers[0])

    row = 0
    for (start, count), kv in zip(pieces, history, strict=True):
        for position in range(start, start + count):
            expected = plain(q[row], kv[: position + 1, 0], kv[: position + 1, 1], window)
            torch.testing.assert_close(out[row], expected, atol=1e-5, rtol=1e-5)
            row += 1


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
