"""The cache's size, its clearing, and what it finds."""

from itertools import product

import pytest
import torch

from tenure.kv.cache import CacheShape, KVCache

SHAPE = CacheShape(windows=(None, 8, None), num_kv_heads=2, head_dim=8, dtype=torch.float32)


def test_a_block_takes_what_is_promised() -> None:
    cache = KVCache(SHAPE, num_blocks=5, block_size=4)
    assert sum(layer.nbytes for layer in cache.layers) == 5 * SHAPE.bytes_per_block(4)
    assert SHAPE.bytes_per_block(4) == 3 * 2 * 2 * 8 * 4 * 4


def test_a_block_of_layers_that_see_equally_far_is_one_piece_of_memory() -> None:
    cache = KVCache(SHAPE, num_blocks=5, block_size=4)
    assert {window: len(memory) for window, memory in cache.groups.items()} == {None: 5, 8: 5}
    for number, layer in enumerate(cache.layers):
        layer.fill_(number + 1)
    assert [memory[3].unique().tolist() for memory in cache.groups.values()] == [[1, 3], [2]]
    assert all(memory[3].is_contiguous() for memory in cache.groups.values())
    assert sum(memory[3].nbytes for memory in cache.groups.values()) == SHAPE.bytes_per_block(4)


def test_layouts_are_equal_where_a_token_is_laid_out_alike() -> None:
    """Whatever the size of a block."""
    others = [
        CacheShape((None, None, None), 2, 8, torch.float32),
        CacheShape((None, 9, None), 2, 8, torch.float32),
        CacheShape((None, 8, None), 1, 16, torch.float32),
        CacheShape((None, 8, None), 2, 8, torch.bfloat16),
    ]
    assert len({SHAPE.layout, *(other.layout for other in others)}) == 5
    assert CacheShape((None, 8, None), 2, 8, torch.float32).layout == SHAPE.layout


def test_clearing_touches_the_named_blocks_only() -> None:
    cache = KVCache(SHAPE, num_blocks=4, block_size=4)
    for layer in cache.layers:
        layer.fill_(torch.nan)
    cache.clear([1, 3])
    for layer in cache.layers:
        assert layer[[1, 3]].count_nonzero() == 0
        assert layer[[0, 2]].isnan().all()
    cache.clear([])


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_number_that_is_not_finite_is_found_at_its_slot_alone(dtype: torch.dtype, value: float) -> None:
    cache = KVCache(
        CacheShape(windows=(None, 8, None), num_kv_heads=2, head_dim=8, dtype=dtype), num_blocks=5, block_size=4
    )
    for layer in cache.layers:
        layer.fill_(torch.finfo(dtype).max)
        layer[::2].neg_()
    everything = torch.arange(20)
    assert cache.finite(everything)
    for layer, part, head, place in product(range(3), range(2), range(2), (0, 7)):
        cache.layers[layer][3, part, head, 2, place] = value
        assert not cache.finite(everything)
        assert not cache.finite(torch.tensor([14]))
        assert cache.finite(everything[everything != 14])
        cache.layers[layer][3, part, head, 2, place] = 0


def test_slots_are_looked_at_in_pieces() -> None:
    """As many as a long prompt has: the last is found as well."""
    cache = KVCache(CacheShape((None,), 8, 128, torch.float32), num_blocks=70, block_size=16)
    cache.layers[0][-1, -1, -1, -1, -1] = torch.nan
    assert cache.finite(torch.arange(70 * 16 - 1))
    assert not cache.finite(torch.arange(70 * 16))
