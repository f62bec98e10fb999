"""Rotary position embedding (Su et al., 2021), on interleaved pairs.

Published weights pair element j of a head with element j + half. Here the rows of the query and key projections are
reordered once, at load (`interleave_rows`), so that pairs are neighbours and one complex product rotates a head.
Attention scores do not change: queries and keys are reordered alike.

Legend: T rows, N heads, H head size, P = H / 2 pairs.
"""

import torch


def rotations(positions_T: torch.Tensor, inverse_P: torch.Tensor) -> torch.Tensor:
    """Unit complex numbers for `rotate_`, shape (T, 1, P), complex64. Computed once per step, used by all layers."""
    angles_TP = torch.outer(positions_T.float(), inverse_P)
    return torch.polar(torch.ones_like(angles_TP), angles_TP).unsqueeze(1)


def rotate_(x_TNH: torch.Tensor, rotations_T1P: torch.Tensor) -> None:
    """Rotate heads in place; the last dimension must be contiguous."""
    pairs_TNP2 = x_TNH.view(*x_TNH.shape[:-1], -1, 2)
    if x_TNH.dtype == torch.float32:
        torch.view_as_complex(pairs_TNP2).mul_(rotations_T1P)
    else:
        rotated = torch.view_as_complex(pairs_TNP2.float()) * rotations_T1P
        pairs_TNP2.copy_(torch.view_as_real(rotated))


def interleave_rows(weight: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Reorder the rows (N * H) of a projection, or its bias, from halves to neighbouring pairs."""
    halves = weight.reshape(num_heads, 2, -1, *weight.shape[1:])
    return halves.transpose(1, 2).reshape(weight.shape)
