"""The cache's size and its clearing."""

import torch

from tenure.kv.cache import CacheShape, KVCache

SHAPE = CacheShape(num_layers=3, num_kv_heads=2, head_dim=8, dtype=torch.float32)


def test_a_block_takes_what_is_promised() -> None:
    cache = KVCache(SHAPE, num_blocks=5, block_size=4)
    assert sum(layer.nbytes for layer in cache.layers) == cache.nbytes == 5 * KVCache.bytes_per_block(SHAPE, 4)
    assert KVCache.bytes_per_block(SHAPE, 4) == 3 * 2 * 2 * 8 * 4 * 4


def test_clearing_touches_the_named_blocks_only() -> None:
    cache = KVCache(SHAPE, num_blocks=4, block_size=4)
    for layer in cache.layers:
        layer.fill_(torch.nan)
    cache.clear([1, 3])
    for layer in cache.layers:
        assert layer[[1, 3]].count_nonzero() == 0
        assert layer[[0, 2]].isnan().all()
    cache.clear([])
