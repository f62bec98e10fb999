"""The paged KV cache: one tensor per layer.

State: `layers`, allocated once and never resized. Owner: the engine, which makes one cache per model. Writers: the
attention layers of the running step, at the slots of blocks that are leased to the items of that step; and `clear`,
for blocks that nobody else holds. This module keeps no account of which block is whose (that is the ledger's).

Layout of a layer: (num_blocks, 2, num_kv_heads, block_size, head_dim); index 0 of the second dimension is the key, 1
the value. A block is contiguous, and so is each head within it. A slot is block * block_size + offset. Keys are stored
rotated. Memory starts as zeros, and must stay finite: an attention back end may multiply stale slots by zero.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one cached token looks like."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def bytes_per_block(self, block_size: int) -> int:
        return self.bytes_per_token * block_size


class KVCache:
    """Keys and values of all layers, in `num_blocks` blocks of `block_size` tokens."""

    def __init__(self, shape: CacheShape, num_blocks: int, block_size: int, device: torch.device | str = "cpu") -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size
        size = (num_blocks, 2, shape.num_kv_heads, block_size, shape.head_dim)
        self.layers = [_zeros(size, shape.dtype, torch.device(device)) for _ in range(shape.num_layers)]

    @staticmethod
    def bytes_per_block(shape: CacheShape, block_size: int) -> int:
        """Memory that one block takes over all layers."""
        return shape.bytes_per_block(block_size)

    @property
    def nbytes(self) -> int:
        return self.num_blocks * self.shape.bytes_per_block(self.block_size)

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold values that are not finite, before another item gets them."""
        if not blocks:
            return
        index = torch.as_tensor(blocks, dtype=torch.int64, device=self.layers[0].device)
        for layer in self.layers:
            layer.index_fill_(0, index, 0)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU without touching the memory, which the system hands out page by page as it is written."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(size)
