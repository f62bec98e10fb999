"""Root-mean-square normalisation (Zhang and Sennrich, 2019).

Legend: T rows, D hidden size.
"""

from dataclasses import dataclass

import torch

from tenure.layers.rowwise import RowKernels


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, row by row."""

    weight_D: torch.Tensor
    eps: float
    kernels: RowKernels

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        return self.kernels.rms_norm(x_TD, self.weight_D, self.eps)
