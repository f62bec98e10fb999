"""The paged KV cache: one tensor per layer.

State: the tensors in `layers`, allocated once, as one piece, and never resized. Owner: the engine, which makes one
cache per model. Writers: the attention layers of the running step, at the slots of blocks that are leased to the items
of that step; and `clear`, for blocks without another holder. Which item holds which block is known to the ledger alone.

Layout of a layer: (num_blocks, 2, num_kv_heads, block_size, head_dim); index 0 of the second dimension is the key, 1
the value. A block is contiguous, and so is each head within it. A slot is block * block_size + offset. Keys are stored
rotated.

Memory starts as zeros, and is finite between steps: an attention back end may multiply stale slots by zero. So the
model runner checks `finite` for all slots that a step has written, and clears blocks that are not.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tenure.kernels.paged_attention import cache_rows

_CHECK_BYTES = 4 << 20
"""How much is looked at together, so that a copy of it fits in the processor's cache."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes of one cached token."""

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
        size = (shape.num_layers, num_blocks, 2, shape.num_kv_heads, block_size, shape.head_dim)
        self._memory = _zeros(size, shape.dtype, torch.device(device))
        self.layers = [self._memory[layer] for layer in range(shape.num_layers)]

    def finite(self, slots_T: torch.Tensor) -> bool:
        """Whether the keys and values at these slots are finite, in all layers."""
        vectors = self._memory.view(self.shape.num_layers, -1, self.shape.head_dim)
        parts = torch.split(slots_T, max(1, _CHECK_BYTES // self.shape.bytes_per_token))
        return all(
            _finite(vectors.index_select(1, cache_rows(part_T, self.block_size, self.shape.num_kv_heads)))
            for part_T in parts
        )

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold values that are not finite, before another item gets them."""
        if blocks:
            self._memory.index_fill_(1, torch.as_tensor(blocks, dtype=torch.int64, device=self._memory.device), 0)


def _finite(values: torch.Tensor) -> bool:
    least, greatest = values.aminmax()  # both are NaN when any value is
    return bool(least.isfinite() & greatest.isfinite())


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU without touching the memory, which the system hands out page by page as it is written."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(size)
