"""Attention over a paged cache with torch's own operations: gather blocks, then scaled dot product attention.

Everything that is the same for all layers of a step (indices, masks) is made once, by `plan_*`.

Legend: T rows, S sequences, N query heads, C key-value heads, G = N / C, U = S * C, H head size, B blocks per
sequence, L gathered tokens, Q rows of one sequence.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """The sizes that all attention layers of a model share."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def scale(self) -> float:
        return float(self.head_dim**-0.5)

    @property
    def bytes_per_token(self) -> int:
        """Key and value of one token in one layer."""
        return 2 * self.num_kv_heads * self.head_dim * self.dtype.itemsize


class LayerGroup(NamedTuple):
    """Layers that see equally far, whose blocks lie side by side."""

    window: int | None
    """How many tokens a row sees, itself included; None: all."""
    layers: int

    def heads_per_block(self, shape: AttentionShape) -> int:
        """Heads of keys and of values, in all layers."""
        return self.layers * 2 * shape.num_kv_heads


# Gathered blocks should still be in the last-level cache when attention reads them.
GATHER_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence with several new rows, `first_row` to `last_row` (exclusive) of the batch."""

    first_row: int
    last_row: int
    blocks: tuple[torch.Tensor, torch.Tensor] | None
    """Indices to gather for keys and for values; None when these rows attend only to each other."""
    num_keys: int
    """Gathered tokens that exist; the last block may be partly empty."""
    mask_QL: torch.Tensor | None
    """0 where a row may look, else minus infinity; None is plain causal."""


@dataclass(frozen=True, slots=True)
class Decode:
    """Sequences with one new row each, attended to in one operation."""

    rows_S: torch.Tensor | None
    """Their rows in the batch; None when they are all of it, in order."""
    key_blocks: torch.Tensor
    value_blocks: torch.Tensor
    mask_UGL: torch.Tensor
    """0 where a row may look, else minus infinity."""


def plan_prefill(
    rows: tuple[int, int], context: int, table_B: IntArray, block_size: int, group: LayerGroup, shape: AttentionShape
) -> Prefill:
    """Describe a sequence whose last new row has position context - 1."""
    window = group.window
    first_row, last_row = rows
    start = context - (last_row - first_row)
    first_block = max(0, start - window + 1) // block_size if window is not None else 0
    first_key = first_block * block_size if start else 0
    num_keys = context - first_key
    blocks = None
    if start:
        blocks = _gather_indices(table_B[None, first_block : -(-context // block_size)], group, shape)
    if start == 0 and (window is None or context <= window):
        return Prefill(first_row, last_row, None, num_keys, None)
    queries_Q = torch.arange(start, context, device=shape.device)
    keys_L = torch.arange(first_key, context, device=shape.device)
    distance_QL = queries_Q.unsqueeze(1) - keys_L
    hidden_QL = distance_QL < 0
    if window is not None:
        hidden_QL |= distance_QL >= window
    mask_QL = torch.zeros(hidden_QL.shape, dtype=shape.dtype, device=shape.device).masked_fill_(hidden_QL, -torch.inf)
    return Prefill(first_row, last_row, blocks, num_keys, mask_QL)


def group_decodes(lengths_S: IntArray, bytes_per_token: int) -> list[IntArray]:
    """Split sequences so that none is padded to more than twice its length, and no group gathers too much."""
    order = np.argsort(-lengths_S, kind="stable")
    groups: list[IntArray] = []
    at = 0
    while at < len(order):
        longest = int(lengths_S[order[at]])
        most = max(1, GATHER_BYTES // (longest * bytes_per_token))
        fitting = int(np.searchsorted(-lengths_S[order], -((longest + 1) // 2), side="right"))
        end = min(at + most, max(fitting, at + 1))
        groups.append(np.sort(order[at:end]))
        at = end
    return groups


def plan_decode(
    rows_S: IntArray | None,
    contexts_S: IntArray,
    tables_SB: IntArray,
    block_size: int,
    group: LayerGroup,
    shape: AttentionShape,
) -> Decode:
    """Describe sequences whose only new row has position contexts_S - 1."""
    window = group.window
    firsts_S = np.maximum(contexts_S - window, 0) // block_size if window is not None else np.zeros_like(contexts_S)
    lasts_S = (contexts_S - 1) // block_size
    columns_SB = firsts_S[:, None] + np.arange(int((lasts_S - firsts_S).max()) + 1)
    # Padding repeats a sequence's own last block, so that nobody's values (not even NaN times zero) leak into it.
    blocks_SB = np.take_along_axis(tables_SB, np.minimum(columns_SB, lasts_S[:, None]), axis=1)
    keys_SL = (columns_SB[:, :, None] * block_size + np.arange(block_size)).reshape(len(contexts_S), -1)
    hidden_SL = keys_SL >= contexts_S[:, None]
    if window is not None:
        hidden_SL |= keys_SL < (contexts_S - window)[:, None]
    mask_SL = np.where(hidden_SL, np.float32(-np.inf), np.float32(0))
    heads_per_group = shape.num_heads // shape.num_kv_heads
    mask_S11L = torch.from_numpy(mask_SL).to(device=shape.device, dtype=shape.dtype)[:, None, None, :]
    key_blocks, value_blocks = _gather_indices(blocks_SB, group, shape)
    return Decode(
        rows_S=None if rows_S is None else torch.from_numpy(rows_S).to(shape.device),
        key_blocks=key_blocks,
        value_blocks=value_blocks,
        mask_UGL=mask_S11L.expand(-1, shape.num_kv_heads, heads_per_group, -1).flatten(0, 1),
    )


def cache_rows(slot_mapping_T: torch.Tensor, block_size: int, heads: int, heads_per_block: int) -> torch.Tensor:
    """The vectors at some slots of the first `heads` heads of keys and values, head by head; flat, T * heads."""
    offsets = torch.arange(heads, device=slot_mapping_T.device) * block_size
    first_T = slot_mapping_T // block_size * (heads_per_block * block_size) + slot_mapping_T % block_size
    return (first_T.unsqueeze(1) + offsets).flatten()


def write(kv_T2CH: torch.Tensor, cache: torch.Tensor, cache_rows: torch.Tensor) -> None:
    """Store the rows' keys and values in a layer's cache."""
    head_dim = cache.shape[-1]
    _from_first_block(cache, head_dim).index_copy_(0, cache_rows, kv_T2CH.reshape(-1, head_dim))


def run_prefill(
    plan: Prefill, q_TNH: torch.Tensor, kv_T2CH: torch.Tensor, cache: torch.Tensor, out_TNH: torch.Tensor, scale: float
) -> None:
    """Attend for the rows of one sequence, whose keys and values are in `cache` already; writes their `out_TNH`."""
    rows = slice(plan.first_row, plan.last_row)
    if plan.blocks is None:
        k_CLH, v_CLH = kv_T2CH[rows].permute(1, 2, 0, 3).unbind(0)
    else:
        k_CLH, v_CLH = (_gather(cache, blocks).flatten(0, 1)[:, : plan.num_keys] for blocks in plan.blocks)
    out_1NQH = F.scaled_dot_product_attention(
        q_TNH[rows].transpose(0, 1).unsqueeze(0),
        k_CLH.unsqueeze(0),
        v_CLH.unsqueeze(0),
        attn_mask=plan.mask_QL,
        is_causal=plan.mask_QL is None,
        scale=scale,
        enable_gqa=True,
    )
    out_TNH[rows] = out_1NQH.squeeze(0).transpose(0, 1)


def run_decode(plan: Decode, q_TNH: torch.Tensor, cache: torch.Tensor, scale: float) -> torch.Tensor:
    """Attend for one row of each sequence, shape (S, N, H)."""
    q_SNH = q_TNH if plan.rows_S is None else q_TNH.index_select(0, plan.rows_S)
    # Query heads of one key-value head act as rows of one product, so keys and values are never repeated.
    q_UGH = q_SNH.reshape(-1, q_SNH.shape[1] // cache.shape[2], q_SNH.shape[2])
    k_ULH = _gather(cache, plan.key_blocks).flatten(0, 1)
    scores_UGL = torch.baddbmm(plan.mask_UGL, q_UGH, k_ULH.transpose(1, 2), alpha=scale)
    v_ULH = _gather(cache, plan.value_blocks).flatten(0, 1)
    return torch.bmm(torch.softmax(scores_UGL, dim=-1), v_ULH).view_as(q_SNH)


def _gather(cache: torch.Tensor, indices_SCB: torch.Tensor) -> torch.Tensor:
    """Blocks of a layer's cache side by side, shape (S, C, L, H)."""
    num_sequences, num_kv_heads, _ = indices_SCB.shape
    heads = _from_first_block(cache, cache.shape[-2] * cache.shape[-1])
    return heads.index_select(0, indices_SCB.flatten()).view(num_sequences, num_kv_heads, -1, cache.shape[-1])


def _from_first_block(cache: torch.Tensor, width: int) -> torch.Tensor:
    """The memory from a layer's first block to the end of its group's, in rows of `width` numbers."""
    size = cache.untyped_storage().nbytes() // cache.itemsize - cache.storage_offset()
    return cache.as_strided((size // width, width), (width, 1))


def _gather_indices(blocks_SB: IntArray, group: LayerGroup, shape: AttentionShape) -> tuple[torch.Tensor, torch.Tensor]:
    """For keys and for values, shape (S, C, B): positions among all heads from a layer's first block on."""
    blocks_S1B = torch.from_numpy(blocks_SB).to(shape.device).unsqueeze(1) * group.heads_per_block(shape)
    keys_SCB = blocks_S1B + torch.arange(shape.num_kv_heads, device=shape.device).unsqueeze(1)
    return keys_SCB, keys_SCB + shape.num_kv_heads
