"""What one forward pass computes: the new tokens of several sequences, packed into rows without padding.

Legend: T rows (new tokens of all sequences), S sequences, B blocks per table.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows of sequence s are query_starts_S[s] .. query_starts_S[s + 1], in order of position, last token last.

    Device tensors (int64) feed the model; host arrays (int64) describe the sequences to the attention back end.
    """

    token_ids_T: torch.Tensor
    positions_T: torch.Tensor
    slot_mapping_T: torch.Tensor
    """The cache slot of each row's key and value: block * block_size + offset."""
    query_starts_S: IntArray
    """S + 1 entries."""
    context_lengths_S: IntArray
    """Tokens visible to the last row of each sequence, itself included."""
    block_tables_SB: IntArray
    """Padded to the longest; the padding is never read."""
    block_size: int


def pack(
    token_ids_T: IntArray,
    starts_S: IntArray,
    counts_S: IntArray,
    block_tables_SB: IntArray,
    block_size: int,
    device: torch.device | str = "cpu",
) -> PackedBatch:
    """Pack `counts_S` new tokens of each sequence, beginning at position `starts_S`; all counts are positive."""
    query_starts_S = np.zeros(len(counts_S) + 1, dtype=np.int64)
    np.cumsum(counts_S, out=query_starts_S[1:])
    sequences_T = np.repeat(np.arange(len(counts_S)), counts_S)
    positions_T = np.arange(len(sequences_T)) + (starts_S - query_starts_S[:-1])[sequences_T]
    blocks_T = block_tables_SB[sequences_T, positions_T // block_size].astype(np.int64)
    slots_T = blocks_T * block_size + positions_T % block_size
    return PackedBatch(
        token_ids_T=torch.from_numpy(np.ascontiguousarray(token_ids_T, dtype=np.int64)).to(device),
        positions_T=torch.from_numpy(positions_T).to(device),
        slot_mapping_T=torch.from_numpy(slots_T).to(device),
        query_starts_S=query_starts_S,
        context_lengths_S=np.asarray(starts_S + counts_S, dtype=np.int64),
        block_tables_SB=np.asarray(block_tables_SB, dtype=np.int64),
        block_size=block_size,
    )
