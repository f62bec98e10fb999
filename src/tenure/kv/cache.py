"""The paged KV cache: one tensor per group of layers, a view of it per layer.

State: the tensors in `groups`, allocated once and never resized. Owner: the engine, which makes one cache per model.
Writers: the attention layers of the running step, at the slots of blocks that are leased to the items of that step; and
`clear`, for blocks without another holder. Which item holds which block is known to the ledger alone.

Layers that see equally far are a group. Layout of a group: (num_blocks, layers, 2, num_kv_heads, block_size, head_dim);
index 0 of the third dimension is the key, 1 the value. So a block of a group is one piece of memory, to be sent and
received as such, and so is each head of a layer within it. A slot is block * block_size + offset. Keys are stored
rotated.

Memory starts as zeros, and is finite between steps: an attention back end may multiply stale slots by zero. So the
model runner checks `finite` for all slots that a step has written, and clears blocks that are not.
"""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch

from tenure.kernels.paged_attention import cache_rows

_CHECK_BYTES = 4 << 20
"""How much is looked at together, so that a copy of it fits in the processor's cache."""


@dataclass(frozen=True, slots=True)
class CacheShape:
    """The sizes of one cached token."""

    windows: tuple[int | None, ...]
    """How many tokens each layer sees; None: all."""
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @property
    def groups(self) -> Mapping[int | None, int]:
        """The number of layers with each window, in the order of the first of each."""
        return Counter(self.windows)

    @property
    def layout(self) -> str:
        """The same for caches of which one can take over another's keys and values, token by token: 32 hex digits."""
        sizes = (list(self.groups.items()), self.num_kv_heads, self.head_dim, str(self.dtype))
        return hashlib.sha256(repr(sizes).encode()).hexdigest()[:32]

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of all layers."""
        return len(self.windows) * 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize

    def bytes_per_block(self, block_size: int) -> int:
        return self.bytes_per_token * block_size


class KVCache:
    """Keys and values of all layers, in `num_blocks` blocks of `block_size` tokens."""

    def __init__(self, shape: CacheShape, num_blocks: int, block_size: int, device: torch.device | str = "cpu") -> None:
        self.shape = shape
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.groups = {
            window: _zeros(
                (num_blocks, layers, 2, shape.num_kv_heads, block_size, shape.head_dim),
                shape.dtype,
                torch.device(device),
            )
            for window, layers in shape.groups.items()
        }
        places = {window: count() for window in self.groups}
        self.layers = [self.groups[window][:, next(places[window])] for window in shape.windows]

    def finite(self, slots_T: torch.Tensor) -> bool:
        """Whether the keys and values at these slots are finite, in all layers."""
        parts = torch.split(slots_T, max(1, _CHECK_BYTES // self.shape.bytes_per_token))
        return all(self._finite(memory, part_T) for memory in self.groups.values() for part_T in parts)

    def _finite(self, memory: torch.Tensor, slots_T: torch.Tensor) -> bool:
        heads = memory.shape[1] * 2 * self.shape.num_kv_heads
        rows = cache_rows(slots_T, self.block_size, heads, heads)
        least, greatest = memory.view(-1, self.shape.head_dim).index_select(0, rows).aminmax()
        return bool(least.isfinite() & greatest.isfinite())  # both are NaN when any value is

    def block(self, number: int) -> list[memoryview]:
        """The bytes of a block, a piece for each group: to be sent, or to be received into. On the CPU alone."""
        return [memory[number].view(torch.uint8).numpy().reshape(-1).data for memory in self.groups.values()]

    def clear(self, blocks: Sequence[int]) -> None:
        """Zero blocks that may hold values that are not finite, before another item gets them."""
        for memory in self.groups.values() if blocks else ():
            memory.index_fill_(0, torch.as_tensor(blocks, dtype=torch.int64, device=memory.device), 0)


def _zeros(size: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Zeros; on the CPU without touching the memory, which the system hands out page by page as it is written."""
    if device.type != "cpu":
        return torch.zeros(size, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(size) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(size)
