"""Root-mean-square normalisation (Zhang and Sennrich, 2019).

Legend: T rows, D hidden size.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F


@dataclass(frozen=True, slots=True)
class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight, row by row."""

    weight_D: torch.Tensor
    eps: float

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x_TD, self.weight_D.shape, self.weight_D, self.eps)
