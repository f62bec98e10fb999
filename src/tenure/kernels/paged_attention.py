"""Attention over a paged cache with torch's own operations: gather blocks, then scaled dot product attention.

Everything that is the same for all layers of a step (indices, masks) is made once, by `plan_*`.

Legend: T rows, S sequences, N query heads, C key-value heads, H head size, B blocks per sequence, L gathered tokens,
Q rows of one sequence.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

IntArray = npt.NDArray[np.int64]

# Gathered blocks should still be in the last-level cache when attention reads them.
GATHER_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence with several new rows, `first_row` to `last_row` (exclusive) of the batch."""

    first_row: int
    last_row: int
    blocks_B: torch.Tensor | None
    """What to gather; None when all that these rows see is among themselves."""
    num_keys: int
    """Gathered tokens that exist; the last block may be partly empty."""
    mask_QL: torch.Tensor | None
    """0 where a row may look, else minus infinity; None is plain causal."""


@dataclass(frozen=True, slots=True)
class Decode:
    """Sequences with one new row each, attended to in one operation."""

    rows_S: torch.Tensor | None
    """Their rows in the batch; None when they are all of it, in order."""
    num_sequences: int
    blocks_SB: torch.Tensor
    """Flat, S * B."""
    mask_S11L: torch.Tensor
    """0 where a row may look, else minus infinity."""


def plan_prefill(
    rows: tuple[int, int], context: int, table_B: IntArray, block_size: int, window: int | None, like: torch.Tensor
) -> Prefill:
    """Describe a sequence whose last new row has position context - 1. `like` gives the mask's type and device."""
    first_row, last_row = rows
    start = context - (last_row - first_row)
    first_block = max(0, start - window + 1) // block_size if window is not None else 0
    first_key = first_block * block_size if start else 0
    num_keys = context - first_key
    blocks_B = None
    if start:
        blocks_B = torch.from_numpy(table_B[first_block : -(-context // block_size)].copy()).to(like.device)
    if start == 0 and (window is None or context <= window):
        return Prefill(first_row, last_row, None, num_keys, None)
    queries_Q = torch.arange(start, context, device=like.device)
    keys_L = torch.arange(first_key, context, device=like.device)
    distance_QL = queries_Q.unsqueeze(1) - keys_L
    hidden_QL = distance_QL < 0
    if window is not None:
        hidden_QL |= distance_QL >= window
    mask_QL = torch.zeros(hidden_QL.shape, dtype=like.dtype, device=like.device).masked_fill_(hidden_QL, -torch.inf)
    return Prefill(first_row, last_row, blocks_B, num_keys, mask_QL)


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
    window: int | None,
    like: torch.Tensor,
) -> Decode:
    """Describe sequences whose only new row has position contexts_S - 1."""
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
    return Decode(
        rows_S=None if rows_S is None else torch.from_numpy(rows_S).to(like.device),
        num_sequences=len(contexts_S),
        blocks_SB=torch.from_numpy(blocks_SB.reshape(-1)).to(like.device),
        mask_S11L=torch.from_numpy(mask_SL).to(device=like.device, dtype=like.dtype)[:, None, None, :],
    )


def run_prefill(
    plan: Prefill, q_TNH: torch.Tensor, kv_T2CH: torch.Tensor, cache: torch.Tensor, out_TNH: torch.Tensor, scale: float
) -> None:
    """Attend for the rows of one sequence, whose keys and values are in `cache` already; writes their `out_TNH`."""
    rows = slice(plan.first_row, plan.last_row)
    if plan.blocks_B is None:
        kv_L2CH = kv_T2CH[rows]
    else:
        kv_L2CH = cache.index_select(0, plan.blocks_B).flatten(0, 1)[: plan.num_keys]
    k_1CLH, v_1CLH = kv_L2CH.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    out_1NQH = F.scaled_dot_product_attention(
        q_TNH[rows].transpose(0, 1).unsqueeze(0),
        k_1CLH,
        v_1CLH,
        attn_mask=plan.mask_QL,
        is_causal=plan.mask_QL is None,
        scale=scale,
        enable_gqa=True,
    )
    out_TNH[rows] = out_1NQH.squeeze(0).transpose(0, 1)


def run_decode(plan: Decode, q_TNH: torch.Tensor, cache: torch.Tensor, scale: float) -> torch.Tensor:
    """Attend for one row of each sequence, shape (S, N, H)."""
    q_SNH = q_TNH if plan.rows_S is None else q_TNH.index_select(0, plan.rows_S)
    gathered = cache.index_select(0, plan.blocks_SB)
    kv_SL2CH = gathered.view(plan.num_sequences, -1, *cache.shape[2:])
    k_SCLH, v_SCLH = kv_SL2CH.permute(2, 0, 3, 1, 4).unbind(0)
    out_SN1H = F.scaled_dot_product_attention(
        q_SNH.unsqueeze(2), k_SCLH, v_SCLH, attn_mask=plan.mask_S11L, scale=scale, enable_gqa=True
    )
    return out_SN1H.squeeze(2)
